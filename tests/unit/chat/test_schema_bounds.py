import math
import time
from typing import Any

import pytest

from flash41.chat.schema_bounds import (
    LARGEST_COUNT,
    LARGEST_DEPTH,
    LARGEST_MULTIPLE,
    LARGEST_NUM_ALTERNATIVES,
    LARGEST_NUM_BYTES,
    LARGEST_NUM_PATTERNS,
    LARGEST_NUM_PROPERTIES,
    LARGEST_NUM_PROPERTIES_IN_ALL,
    LARGEST_PATTERN,
    check_schema,
)
from flash41.errors import RequestError


def nested(depth: int) -> Any:
    schema: Any = {}
    for _ in range(depth):
        schema = {"items": schema}
    return schema


def many(count: int) -> dict[str, Any]:
    return {f"p{number}": {} for number in range(count)}


AT_THE_BOUND = [
    nested(LARGEST_DEPTH),
    {"maxLength": LARGEST_COUNT, "minItems": 0},
    {"pattern": "a" * LARGEST_PATTERN},
    {"properties": many(LARGEST_NUM_PROPERTIES)},
    {"anyOf": [{}] * LARGEST_NUM_ALTERNATIVES},
    {"items": [{"pattern": "a"}] * LARGEST_NUM_PATTERNS},
    {"multipleOf": LARGEST_MULTIPLE - 1},
    {"multipleOf": 10**9},
    {"items": [{"multipleOf": 0.25}, {"multipleOf": 25}, {"multipleOf": 0.5}]},
    {"properties": {"multipleOf": {"type": "string"}, "pattern": {}, "anyOf": {}}},
    {"enum": [2**63 - 1, -1e308, True, None, "x"]},
    {"const": "x" * (LARGEST_NUM_BYTES - 10)},
    True,
]
BEYOND = [
    (nested(LARGEST_DEPTH + 1), "thing: got 'a deeper schema', expected at most 64 levels"),
    (nested(20_000), "a deeper schema"),
    ({"maxLength": LARGEST_COUNT + 1}, "thing: maxLength: got 100001"),
    ({"minItems": -1}, "thing: minItems: got -1"),
    ({"pattern": "a" * (LARGEST_PATTERN + 1)}, "thing: pattern: got '1001 characters'"),
    ({"properties": many(LARGEST_NUM_PROPERTIES + 1)}, "thing: properties: got 257"),
    ({"items": [{"properties": many(205)}] * 5}, f"properties in all: got 1025, .* {LARGEST_NUM_PROPERTIES_IN_ALL}"),
    ({"oneOf": [{}] * (LARGEST_NUM_ALTERNATIVES + 1)}, "thing: oneOf: got '257 schemas'"),
    ({"patternProperties": many(LARGEST_NUM_PATTERNS + 1)}, "thing: patterns: got 257"),
    ({"multipleOf": 1_234_567}, r"thing: multipleOf: got \[1234567\]"),
    ({"items": [{"multipleOf": 0.97}, {"multipleOf": 89}, {"multipleOf": 8.3}]}, r"multipleOf: got \[83, 89, 97\]"),
    ({"enum": [2**63]}, "thing: number: got 9223372036854775808"),
    ({"minimum": math.nan}, "thing: number: got nan"),
    ({"const": "x" * LARGEST_NUM_BYTES}, "thing: got 'a larger schema'"),
    ({"enum": ["é" * 1000] * 200}, "thing: got 'a larger schema'"),
]


@pytest.mark.parametrize("schema", AT_THE_BOUND, ids=range(len(AT_THE_BOUND)))
def test_a_schema_at_a_bound_passes(schema: Any) -> None:
    check_schema(schema, "thing")


@pytest.mark.parametrize(("schema", "message"), BEYOND, ids=range(len(BEYOND)))
def test_a_schema_beyond_a_bound_is_refused_by_its_name(schema: Any, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        check_schema(schema, "thing")


def test_all_faults_of_a_schema_are_listed() -> None:
    with pytest.raises(RequestError, match=r"(?s)2 faults.*maxLength.*pattern"):
        check_schema({"maxLength": 10**9, "pattern": "a" * 2000}, "thing")


def test_a_huge_schema_is_refused_at_once() -> None:
    huge = {"enum": list(range(3_000_000))}
    start = time.perf_counter()
    with pytest.raises(RequestError, match="larger schema"):
        check_schema(huge, "thing")
    assert time.perf_counter() - start < 5
