"""How large a JSON Schema may be: read before anything is built from it, in time linear in its size.

A grammar is built from whatever a client sends.  The library that builds it counts its own work and gives up, except
where one number asks for a large automaton (`multipleOf`); these bounds refuse such schemas by name.
"""

import math
from collections.abc import Iterator
from typing import Any

from flash41.errors import RequestError, combined, complaint

LARGEST_NUM_BYTES = 262_144
"""Of all texts of a schema, keys included, plus one for each value."""
LARGEST_DEPTH = 64
LARGEST_PATTERN = 1_000
LARGEST_NUM_PROPERTIES = 256
"""Of one object: a grammar's size goes with the square of it."""
LARGEST_NUM_PROPERTIES_IN_ALL = 1024
LARGEST_NUM_ALTERNATIVES = 256
"""Of one anyOf, oneOf or allOf."""
LARGEST_NUM_PATTERNS = 256
"""Of a schema, those of patternProperties included."""
LARGEST_COUNT = 100_000
"""Of minLength, maxItems and the like."""
LARGEST_MULTIPLE = 10_000
"""Product of the digits of all multipleOf: 0.25 counts 25, 300 counts 3."""
COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
INTEGER_LIMIT = 2**63


def check_schema(schema: Any, thing: str) -> None:
    """Raises RequestError naming each bound that a schema exceeds."""
    num_bytes, num_patterns, num_properties, multiples, faults = 0, 0, 0, set[int](), list[str]()
    for node, depth in _nodes(schema):
        num_bytes += 1 + (len(node.encode()) if isinstance(node, str) else 0)
        if num_bytes > LARGEST_NUM_BYTES:
            raise RequestError(complaint(thing, "a larger schema", f"at most {LARGEST_NUM_BYTES} bytes"))
        if depth > LARGEST_DEPTH:
            raise RequestError(complaint(thing, "a deeper schema", f"at most {LARGEST_DEPTH} levels"))
        if isinstance(node, dict):
            faults += [f"{thing}: {fault}" for fault in _faults(node)]
            multiples |= _multiple(node.get("multipleOf"))
            num_properties += _size(node.get("properties"))
            num_patterns += ("pattern" in node) + _size(node.get("patternProperties"))
        elif not _is_plain(node):
            faults.append(complaint(f"{thing}: number", node, "a finite number, an integer below 2**63"))
    for name, count, largest in (
        ("properties in all", num_properties, LARGEST_NUM_PROPERTIES_IN_ALL),
        ("patterns", num_patterns, LARGEST_NUM_PATTERNS),
    ):
        if count > largest:
            faults.append(complaint(f"{thing}: {name}", count, f"at most {largest}"))
    if math.prod(multiples) > LARGEST_MULTIPLE:
        expected = f"factors whose digits multiply to at most {LARGEST_MULTIPLE}"
        faults.append(complaint(f"{thing}: multipleOf", sorted(multiples), expected))
    if faults:
        raise RequestError(combined(faults))


def _nodes(schema: Any) -> Iterator[tuple[Any, int]]:
    """Every value and key with its depth; no recursion, as the depth is the client's."""
    left: list[tuple[Any, int]] = [(schema, 0)]
    while left:
        node, depth = left.pop()
        yield node, depth
        if isinstance(node, dict):
            left += ((key, depth) for key in node)
            left += ((value, depth + 1) for value in node.values())
        elif isinstance(node, list):
            left += ((value, depth + 1) for value in node)


def _is_plain(node: Any) -> bool:
    if isinstance(node, float):
        return math.isfinite(node)
    return not isinstance(node, int) or isinstance(node, bool) or abs(node) < INTEGER_LIMIT


def _faults(node: dict[str, Any]) -> Iterator[str]:
    for name in ("anyOf", "oneOf", "allOf"):
        if _size(node.get(name)) > LARGEST_NUM_ALTERNATIVES:
            yield complaint(name, f"{_size(node[name])} schemas", f"at most {LARGEST_NUM_ALTERNATIVES}")
    if _size(node.get("properties")) > LARGEST_NUM_PROPERTIES:
        yield complaint("properties", _size(node["properties"]), f"at most {LARGEST_NUM_PROPERTIES}")
    for name in COUNTS:
        count = node.get(name)
        if isinstance(count, (int, float)) and not 0 <= count <= LARGEST_COUNT:
            yield complaint(name, count, f"at most {LARGEST_COUNT}")
    pattern = node.get("pattern")
    if isinstance(pattern, str) and len(pattern) > LARGEST_PATTERN:
        yield complaint("pattern", f"{len(pattern)} characters", f"at most {LARGEST_PATTERN}")


def _size(part: Any) -> int:
    return len(part) if isinstance(part, (dict, list)) else 0


def _multiple(factor: Any) -> set[int]:
    """Significant digits of a factor as an integer: what its automaton grows with."""
    if isinstance(factor, bool) or not isinstance(factor, (int, float)) or not math.isfinite(factor):
        return set()
    digits = format(abs(factor), "f") if isinstance(factor, float) else str(abs(factor))
    significant = digits.replace(".", "").strip("0")
    return {int(significant)} if significant else set()
