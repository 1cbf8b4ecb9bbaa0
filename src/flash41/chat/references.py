"""References within a JSON Schema: following them, and moving a part out of its whole.

spec: RFC 6901 (paths); only `#` and `#/...` are followed, nothing is ever fetched.
"""

from typing import Any

from flash41.chat.schema_bounds import LARGEST_DEPTH
from flash41.errors import RequestError, complaint

ANNOTATIONS = frozenset(("title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly")).union(
    ("$comment", "$schema", "$defs", "definitions", "$id")
)
"""Keywords that ask nothing of a value."""


def resolved(node: Any, root: Any, thing: str) -> Any:
    """A schema with its references followed, as long as nothing but annotations stands beside them."""
    for _ in range(LARGEST_DEPTH):
        if not isinstance(node, dict) or "$ref" not in node:
            return node
        beside = sorted(set(node) - ANNOTATIONS - {"$ref"})
        if beside:
            raise RequestError(complaint(f"{thing}: beside $ref", beside, "nothing"))
        node = _target(node["$ref"], root, thing)
    raise RequestError(complaint(f"{thing}: $ref", "a reference to itself", "an end"))


def _target(reference: Any, root: Any, thing: str) -> Any:
    expected = "a path within the schema, like #/$defs/name"
    if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
        raise RequestError(complaint(f"{thing}: $ref", reference, expected))
    node = root
    for part in reference.split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(node, dict) and key in node:
            node = node[key]
        elif isinstance(node, list) and key.isdigit() and int(key) < len(node):
            node = node[int(key)]
        else:
            raise RequestError(complaint(f"{thing}: $ref", reference, expected))
    return node


def holds_reference(node: Any) -> bool:
    """Whether `$ref` stands anywhere in a schema."""
    if isinstance(node, dict):
        return isinstance(node.get("$ref"), str) or any(map(holds_reference, node.values()))
    return isinstance(node, list) and any(map(holds_reference, node))


def redirected(node: Any) -> Any:
    """A copy whose references `#...` read `#/$defs/root...`; constants and the copy's data stay as they are."""
    if isinstance(node, list):
        return [redirected(item) for item in node]
    if not isinstance(node, dict):
        return node
    copy = {key: value if key in ("enum", "const", "default") else redirected(value) for key, value in node.items()}
    reference = copy.get("$ref")
    if isinstance(reference, str) and reference.startswith("#"):
        copy["$ref"] = f"#/$defs/root{reference[1:]}"
    return copy
