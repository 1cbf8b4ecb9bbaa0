"""A tool's JSON Schema as parameters: each with the strings it admits, raw, and everything else it admits, as JSON.

    {"type": ["string", "null"], "maxLength": 3}  ->  raw: up to three characters;  JSON: {"type": ["null"], ...}

What cannot be split so is refused by name: a keyword that is ignored would be a promise that is not kept.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flash41.chat.grammar import Grammars
from flash41.chat.raw_strings import KEYWORDS, check_spelling, constants_terminal, string_terminal
from flash41.chat.references import ANNOTATIONS, holds_reference, redirected, resolved
from flash41.chat.schema_bounds import LARGEST_DEPTH
from flash41.errors import RequestError, complaint

TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")
COMBINERS = ("anyOf", "oneOf", "allOf")
LARGEST_NUM_VISITS = 10_000
"""Schemas looked at for the parameters of one tool."""
OF_PARAMETERS = frozenset(("type", "properties", "required", "additionalProperties"))
NAME = re.compile(r'[^"\\\x00-\x1f\x7f]+')
"""What stands between quotes and is read back as it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One parameter of a call."""

    name: str | None
    """None for parameters that are not declared."""
    name_terminal: str = ""
    """Grammar of the names that are not declared."""
    required: bool
    raw: tuple[str, ...]
    """Terminals of the strings it admits."""
    json: Any
    """Schema of everything else it admits; None if there is nothing else."""


def parameters_of(
    schema: Any, grammars: Grammars, thing: str, markers: Sequence[str]
) -> tuple[list[Parameter], Parameter | None]:
    """Declared parameters in order, and what others look like, if there may be others.

    A schema that says nothing of others admits none: a narrower promise than JSON Schema's, kept all the same.
    Raises RequestError naming the keyword that cannot be enforced.
    """
    root = _root(schema, thing)
    properties, required = root.get("properties", {}), root.get("required", [])
    if not isinstance(properties, dict) or not isinstance(required, list):
        raise RequestError(complaint(f"{thing}: parameters", schema, "properties by name and a list of required ones"))
    others = root.get("additionalProperties", False)
    declared = dict(properties)
    for name in required:
        if name not in declared:
            if others is False and "additionalProperties" in root:
                raise RequestError(complaint(f"{thing}: required", name, "a declared property"))
            declared[name] = True if isinstance(others, bool) else others
    reader = _Reader(schema, grammars, markers)
    found = [
        Parameter(
            name=_checked(name, thing, markers), required=name in required, **reader.read(sub, f"{thing}: {name!r}")
        )
        for name, sub in declared.items()
    ]
    if others is False:
        return found, None
    terminal = r'/[^"\\\x00-\x1f\x7f]{1,64}/'
    if declared:
        terminal += f" & ~/({'|'.join(map(_quoted, declared))})/"
    free = Parameter(
        name=None, name_terminal=terminal, required=False, **reader.read(others, f"{thing}: other parameters")
    )
    return found, free


def _quoted(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_]", lambda found: f"\\x{{{ord(found[0]):x}}}", name)


def _checked(name: str, thing: str, markers: Sequence[str]) -> str:
    if not NAME.fullmatch(name):
        raise RequestError(complaint(f"{thing}: parameter", name, "a name without quotes, backslashes and line breaks"))
    check_spelling([name], markers, f"{thing}: parameter")
    return name


def _root(schema: Any, thing: str) -> Mapping[str, Any]:
    """The object that holds the parameters; `{}` has none."""
    root = resolved(schema, schema, thing)
    if not isinstance(root, dict):
        raise RequestError(complaint(f"{thing}: parameters", root, "a JSON Schema of an object"))
    unknown = sorted(set(root) - OF_PARAMETERS - ANNOTATIONS)
    if unknown or root.get("type", "object") != "object":
        got = unknown or root.get("type")
        expected = f"an object with no keywords but {', '.join(sorted(OF_PARAMETERS))}"
        raise RequestError(complaint(f"{thing}: parameters", got, expected))
    return root


class _Reader:
    """Splits schemas of single parameters."""

    def __init__(self, root: Any, grammars: Grammars, markers: Sequence[str]) -> None:
        self._root = root
        self._grammars = grammars
        self._markers = markers
        self._num_visits = 0
        self._checked = set[str]()

    def read(self, schema: Any, thing: str) -> dict[str, Any]:
        """Fields `raw` and `json` of a Parameter."""
        raw: list[str] = []
        rest: list[Any] = []
        for way in self._ways(schema, thing, 0):
            strings, other = self._split(way, thing)
            raw += strings
            rest += [] if other is None else [other]
        if not raw and not rest:
            raise RequestError(complaint(thing, schema, "a schema that admits a value"))
        others = None
        if rest:
            others = self._embedded(rest[0] if len(rest) == 1 else {"anyOf": rest})
            self._check(others, thing)
        return {"raw": tuple(dict.fromkeys(raw)), "json": others}

    def _check(self, schema: Any, thing: str) -> None:
        """Each different schema once: parameters without a type are many and all alike."""
        text = json.dumps(schema)
        if text not in self._checked:
            self._grammars.check_json(schema, thing)
            self._checked.add(text)

    def _ways(self, schema: Any, thing: str, depth: int) -> Iterator[Any]:
        """The alternatives of a schema, references followed."""
        node = self._visited(schema, thing, depth)
        if node is True or node == {}:
            node = {"type": list(TYPES)}
        if not isinstance(node, dict):
            raise RequestError(complaint(thing, node, "a JSON Schema that admits a value"))
        combiner = next((key for key in COMBINERS if key in node), None)
        if combiner is None or self._admits_no_string(node, depth):
            yield node
            return
        parts, beside = node[combiner], sorted(set(node) - ANNOTATIONS - {combiner})
        if not isinstance(parts, list) or not parts or beside:
            raise RequestError(complaint(f"{thing}: beside {combiner}", beside, f"nothing, and a list in {combiner}"))
        if combiner == "oneOf":
            self._check_disjoint(parts, thing)
        if combiner == "allOf" and len(parts) > 1:
            raise RequestError(complaint(f"{thing}: allOf", f"{len(parts)} schemas", "one", "merge them"))
        for part in parts:
            yield from self._ways(part, thing, depth + 1)

    def _visited(self, schema: Any, thing: str, depth: int) -> Any:
        """A schema with its references followed; counts, as references can double at each level."""
        self._num_visits += 1
        if depth > LARGEST_DEPTH or self._num_visits > LARGEST_NUM_VISITS:
            got = "alternatives within alternatives"
            raise RequestError(complaint(thing, got, f"{LARGEST_DEPTH} levels and {LARGEST_NUM_VISITS} in all"))
        return resolved(schema, self._root, thing)

    def _admits_no_string(self, schema: Any, depth: int) -> bool:
        """Whether types alone show that no string fits; such a schema is JSON as a whole."""
        node = self._visited(schema, "$ref", depth)
        if not isinstance(node, dict):
            return False
        if "type" in node and "string" not in _types(node, "type"):
            return True
        parts = {key: node[key] for key in COMBINERS if isinstance(node.get(key), list) and node[key]}
        return any(
            (any if key == "allOf" else all)(self._admits_no_string(part, depth + 1) for part in several)
            for key, several in parts.items()
        )

    def _check_disjoint(self, parts: Sequence[Any], thing: str) -> None:
        """Makes sure that no value fits two alternatives: told here of strings, by the library of all else."""
        constants, any_string, rests = set[str](), False, list[Any]()
        for part in parts:
            mine, mine_any, rest = set[str](), False, list[Any]()
            for way in self._ways(part, thing, 0):
                values = _constants_of(way)
                mine |= {value for value in values or () if isinstance(value, str)}
                mine_any |= values is None and "string" in _types(way, thing)
                rest += [other for other in (self._split(way, thing)[1],) if other is not None]
            if mine & constants or (mine_any and (constants or any_string)) or (mine and any_string):
                expected = "alternatives that share no string"
                raise RequestError(complaint(f"{thing}: oneOf", "a string that fits two", expected, "use anyOf"))
            constants, any_string = constants | mine, any_string or mine_any
            rests += [{"anyOf": rest}] if rest else []
        if len(rests) > 1:
            self._grammars.check_json(self._embedded({"oneOf": rests}), f"{thing}: oneOf")

    def _split(self, way: dict[str, Any], thing: str) -> tuple[list[str], Any]:
        """Terminals of the strings one alternative admits, and the schema of everything else."""
        if any(key in way for key in COMBINERS):
            return [], way
        types = _types(way, thing)
        values = _constants_of(way)
        if values is not None:
            return self._constants(way, types, values, thing)
        strings = []
        if "string" in types:
            strings = [string_terminal({key: way[key] for key in KEYWORDS if key in way}, self._grammars, thing)]
        others = [kind for kind in types if kind != "string"]
        return strings, {**way, "type": others} if others else None

    def _constants(
        self, way: dict[str, Any], types: Sequence[str], values: Any, thing: str
    ) -> tuple[list[str], dict[str, Any] | None]:
        beside = sorted(set(way) - ANNOTATIONS - {"enum", "const", "type"})
        if not isinstance(values, list) or beside or ("enum" in way and "const" in way):
            raise RequestError(complaint(f"{thing}: beside enum or const", beside, "a list of values and a type"))
        admitted = [value for value in values if _type_of(value) & set(types)]
        strings = [value for value in admitted if isinstance(value, str)]
        check_spelling(admitted, self._markers, thing)
        others = [value for value in admitted if not isinstance(value, str)]
        return [constants_terminal(strings)] if strings else [], {"enum": others} if others else None

    def _embedded(self, schema: Any) -> Any:
        """A schema that stands alone: references lead into a copy of the whole, kept beside it."""
        if not holds_reference(schema):
            return schema
        whole = self._root
        if isinstance(whole, dict):
            whole = {key: value for key, value in whole.items() if key not in ("$id", "$schema")}
        return {**redirected(schema), "$defs": {"root": redirected(whole)}}


def _types(way: Mapping[str, Any], thing: str) -> list[str]:
    given = way.get("type", list(TYPES))
    types = [given] if isinstance(given, str) else given
    if not isinstance(types, list) or not types or any(kind not in TYPES for kind in types):
        raise RequestError(complaint(f"{thing}: type", given, f"one or several of {', '.join(TYPES)}"))
    return types


def _type_of(value: Any) -> set[str]:
    """Types a JSON value has."""
    if value is None:
        return {"null"}
    if isinstance(value, bool):
        return {"boolean"}
    if isinstance(value, (int, float)):
        return {"integer", "number"} if value == int(value) else {"number"}
    return {"string" if isinstance(value, str) else "array" if isinstance(value, list) else "object"}


def _constants_of(way: Mapping[str, Any]) -> Any:
    """The values of enum or const; None where neither is."""
    return way["enum"] if "enum" in way else [way["const"]] if "const" in way else None
