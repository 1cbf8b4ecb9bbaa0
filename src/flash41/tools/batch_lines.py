"""Lines of a batch file: what each asks, under which id its result is known, and what is wrong with it.

    {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {"messages": [...]}}

The id of a result is a digest of its line and of the model that answers, so that a result says by itself whether it
belongs to a given input.
"""

import hashlib
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flash41.checkpoint.strict_json import parse_object
from flash41.errors import RequestError, combined, complaint

CHAT_URL = "/v1/chat/completions"
COMPLETION_URL = "/v1/completions"
URLS = (CHAT_URL, COMPLETION_URL)


@dataclass(frozen=True, slots=True, kw_only=True)
class LineFault:
    """Why a line asks nothing that can be tried."""

    code: str
    """invalid_json, invalid_custom_id, invalid_method, invalid_url or invalid_body."""
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLine:
    """One line of the input."""

    number: int
    """From 1."""
    digest: str
    """32 hexadecimal digits, in every id of the line's result."""
    custom_id: str | None
    url: str
    body: Mapping[str, Any]
    fault: LineFault | None

    @property
    def result_id(self) -> str:
        """The `id` of the line's result."""
        return f"batch_req_{self.digest}"


def fingerprint(model: Path | None, options: Sequence[str | None]) -> str:
    """Names the model that answers: its place and configuration, and the options that decide its numbers."""
    config = b""
    if model is not None and (model / "config.json").is_file():
        config = (model / "config.json").read_bytes()
    place = None if model is None else str(model.resolve())
    return hashlib.sha256(json.dumps([place, *options]).encode() + config).hexdigest()


def read_lines(source: Path, model: str) -> list[BatchLine]:
    """Lines of the input that are not blank, each with its digest under the model's fingerprint.

    Raises RequestError if the file cannot be read, or listing every custom_id that several lines have.
    """
    try:
        data = source.read_bytes()
    except OSError as error:
        raise RequestError(complaint("batch input", str(source), "a readable file", error.strerror)) from error
    lines = [_line(number, text, model) for number, text in enumerate(data.split(b"\n"), 1) if text.strip()]
    places: dict[str, list[int]] = defaultdict(list)
    for line in lines:
        if line.custom_id is not None:
            places[line.custom_id].append(line.number)
    faults = [
        complaint(f"custom_id {name!r}", f"lines {', '.join(map(str, numbers))}", "one line per custom_id")
        for name, numbers in places.items()
        if len(numbers) > 1
    ]
    if faults:
        raise RequestError(combined(faults))
    return lines


def _line(number: int, text: bytes, model: str) -> BatchLine:
    fault, document = None, dict[str, Any]()
    try:
        document = parse_object(text.strip())
    except ValueError as error:
        fault = LineFault(code="invalid_json", message=f"line {number}: {error}")
    custom_id = document.get("custom_id")
    named = isinstance(custom_id, str) and custom_id != ""
    body = document.get("body")
    # A line without a name of its own is known by its place.
    place = "" if named else str(number)
    digest = hashlib.sha256(b"\n".join((model.encode(), place.encode(), text.strip()))).hexdigest()[:32]
    return BatchLine(
        number=number,
        digest=digest,
        custom_id=custom_id if named else None,
        url=str(document.get("url")),
        body=body if isinstance(body, dict) else {},
        fault=fault or _fault(document),
    )


def _fault(document: Mapping[str, Any]) -> LineFault | None:
    custom_id, method, url, body = (document.get(key) for key in ("custom_id", "method", "url", "body"))
    if not isinstance(custom_id, str) or not custom_id:
        return LineFault(
            code="invalid_custom_id", message=complaint("custom_id", custom_id, "a text that is not empty")
        )
    if method != "POST":
        return LineFault(code="invalid_method", message=complaint("method", method, "'POST'"))
    if url not in URLS:
        return LineFault(code="invalid_url", message=complaint("url", url, " or ".join(URLS)))
    if not isinstance(body, dict):
        return LineFault(code="invalid_body", message=complaint("body", type(body).__name__, "a JSON object"))
    return None
