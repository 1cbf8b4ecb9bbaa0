"""What the server writes down: one line per request, never a word of a prompt, an answer or a key."""

import json
import logging
import time
import traceback
from typing import Any

ACCESS = "flash41.server.access"
"""Name of the logger of requests."""
FIELDS = "fields"
"""Attribute of a record that holds its facts."""


class JsonFormatter(logging.Formatter):
    """A record as one JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        """Time in UTC, level, logger, message, and the record's facts; of an exception its type and its places."""
        found: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, FIELDS, {}),
        }
        if record.exc_info:
            found["exception"] = places(record)
        return json.dumps(found, ensure_ascii=True, default=str)


class TextFormatter(logging.Formatter):
    """A record as one line for people."""

    def format(self, record: logging.LogRecord) -> str:
        """Time, level, message, and the record's facts as name=value."""
        facts = "".join(f" {name}={value}" for name, value in getattr(record, FIELDS, {}).items())
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        line = f"{clock} {record.levelname.lower()} {record.getMessage()}{facts}"
        return f"{line}\n{places(record)}" if record.exc_info else line


def places(record: logging.LogRecord) -> str:
    """The type of a record's exception and where it came from; not its message, which may hold a client's text."""
    kind, _, trace = record.exc_info or (None, None, None)
    frames = traceback.format_tb(trace)
    return "".join([*frames, kind.__name__ if kind else ""]).rstrip()


def handler(*, as_json: bool) -> logging.Handler:
    """A handler to standard error."""
    found = logging.StreamHandler()
    found.setFormatter(JsonFormatter() if as_json else TextFormatter())
    return found


def set_up(*, as_json: bool) -> None:
    """One line per request and per decision to standard error; the plan is printed instead of logged."""
    logging.basicConfig(level=logging.INFO, handlers=[handler(as_json=as_json)])
    for name in ("uvicorn", "flash41.engine"):
        logging.getLogger(name).setLevel(logging.WARNING)
