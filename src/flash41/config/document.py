"""A JSON file as a Python object, or one clear error.

Stricter than the standard reader: no duplicate keys, no NaN or Infinity, a bounded size and depth.  Knows nothing of
what the keys mean.
"""

import json
from collections import Counter
from pathlib import Path

from flash41.errors import ConfigError, complaint

MAX_FILE_BYTES = 1 << 24
"""The release's file has 4 KiB; a larger one is something else."""
MAX_DEPTH = 16
"""The release nests three objects and one list; deeper values would only exhaust the stack of whoever prints them."""


class _RefusedError(ValueError):
    """JSON that the standard reader would accept."""


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    result = dict(pairs)
    if len(result) != len(pairs):
        counts = Counter(name for name, _ in pairs)
        repeated = sorted(name for name, count in counts.items() if count > 1)
        raise _RefusedError(f"duplicate keys {repeated}")
    return result


def _constant(text: str) -> float:
    raise _RefusedError(f"{text} is no number")


def check_depth(document: object, name: str) -> None:
    """Raises ConfigError if lists and objects nest deeper than `MAX_DEPTH`."""
    layer: list[object] = [document]
    for _ in range(MAX_DEPTH + 1):
        inner: list[object] = []
        for value in layer:
            if isinstance(value, dict):
                inner.extend(value.values())
            elif isinstance(value, (list, tuple)):
                inner.extend(value)
        if not inner:
            return
        layer = inner
    raise ConfigError(
        f"{name}: got lists or objects nested deeper than {MAX_DEPTH}, expected the layout of the release"
    )


def parse_document(text: str, name: str) -> dict[str, object]:
    """The JSON object in `text`; `name` opens the message of a ConfigError."""
    try:
        document: object = json.loads(text, object_pairs_hook=_object, parse_constant=_constant)
    except RecursionError as error:
        raise ConfigError(f"{name}: got lists or objects nested too deep to read, expected valid JSON") from error
    except ValueError as error:
        # Also numbers with more digits than Python converts.
        raise ConfigError(f"{name}: expected valid JSON ({error})") from error
    if not isinstance(document, dict):
        raise ConfigError(complaint(name, type(document).__name__, "a JSON object"))
    check_depth(document, name)
    return document


def read_document(path: Path) -> dict[str, object]:
    """The JSON object of a file.  Raises ConfigError when it is missing, unreadable, too large or no JSON object."""
    try:
        if not path.is_file():
            raise ConfigError(f"{path}: expected a file (no such file; a checkpoint directory holds config.json)")
        size_bytes = path.stat().st_size
        if size_bytes > MAX_FILE_BYTES:
            raise ConfigError(f"{path}: got {size_bytes} bytes, expected at most {MAX_FILE_BYTES}")
        text = path.read_bytes().decode("utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: expected UTF-8 text ({error})") from error
    return parse_document(text, str(path))
