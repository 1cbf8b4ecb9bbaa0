"""JSON of files that may be damaged or hostile: one failure mode, no repeated key, no surprise number."""

import json
from collections import Counter
from typing import NoReturn

from flash41.checkpoint.faults import brief


def parse_object(data: bytes) -> dict[str, object]:
    """The JSON object in `data`; ValueError says what is wrong with anything else.

    Refuses repeated keys, NaN and infinities, integers above 4300 digits, and nesting that Python cannot follow.
    """
    try:
        document = json.loads(
            data.decode("utf-8"),
            object_pairs_hook=_unique,
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


def _constant(name: str) -> NoReturn:
    raise ValueError(f"the number {name}")
