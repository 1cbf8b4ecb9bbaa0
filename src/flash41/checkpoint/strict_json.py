"""JSON of files that may be damaged or hostile: one failure mode, no repeated key, no surprise number."""

import json
from collections import Counter
from typing import NoReturn

from flash41.checkpoint.faults import brief

MAX_DIGITS = 18
"""Digits of an integer; a release's offsets have 12, and every such number fits 64 bits."""


def parse_object(data: bytes) -> dict[str, object]:
    """The JSON object in `data`; ValueError says what is wrong with anything else.

    Refuses repeated keys, NaN and infinities, integers above 18 digits, and any nesting Python cannot follow.
    """
    try:
        document = json.loads(
            data.decode("utf-8"),
            object_pairs_hook=_unique,
            parse_int=_integer,
            parse_constant=_constant,
        )
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(document, dict):
        raise ValueError(f"a JSON {type(document).__name__} instead of an object")
    return document


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    document = dict(pairs)
    if len(document) != len(pairs):
        repeated, _ = Counter(key for key, _ in pairs).most_common(1)[0]
        raise ValueError(f"key {brief(repeated)} appears twice")
    return document


def _integer(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ValueError(f"an integer of {len(digits)} digits")
    return int(digits)


def _constant(name: str) -> NoReturn:
    raise ValueError(f"the number {name}")
