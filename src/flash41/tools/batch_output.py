"""The output of a batch: results written as they come beside the output, which appears when all are there.

A result belongs to an input if its id is that of one of the lines.  So an output, or what an interrupted run left in
``OUT.partial``, is continued if all of it belongs to the input, and is somebody else's file otherwise.
"""

import json
import os
from collections.abc import Collection
from pathlib import Path
from typing import Any

from flash41.checkpoint.strict_json import parse_object
from flash41.errors import CapacityError, RequestError, combined, complaint

RESULT_START = b'{"id": "batch_req_'
"""How every result begins."""


class BatchOutput:
    """An output being written."""

    def __init__(self, target: Path, kept: dict[str, bytes]) -> None:
        self.target = target
        self.partial = partial_of(target)
        self._kept = kept

    @property
    def done(self) -> Collection[str]:
        """Ids of results that earlier runs left."""
        return self._kept.keys()

    @property
    def num_failed(self) -> int:
        """Failures among them."""
        return sum(parse_object(line)["error"] is not None for line in self._kept.values())

    def begin(self) -> None:
        """Writes what earlier runs left into the partial file, to be continued; raises CapacityError."""
        fresh = self.partial.with_name(f"{self.partial.name}.new")
        try:
            fresh.write_bytes(b"".join(line + b"\n" for line in self._kept.values()))
            os.replace(fresh, self.partial)
        except OSError as error:
            raise _refused(self.partial, error) from error

    def append(self, result: dict[str, Any]) -> None:
        """Writes one result at once, so that an interruption loses none that was reported."""
        try:
            with self.partial.open("ab") as file:
                file.write(_encoded(result) + b"\n")
        except OSError as error:
            raise _refused(self.partial, error) from error

    def finish(self) -> None:
        """Gives the partial file the name of the output."""
        try:
            with self.partial.open("rb") as file:
                os.fsync(file.fileno())
            os.replace(self.partial, self.target)
        except OSError as error:
            raise _refused(self.target, error) from error


def partial_of(target: Path) -> Path:
    """Where results lie until all are there."""
    return target.with_name(f"{target.name}.partial")


def open_output(source: Path, target: Path, ids: Collection[str], force: bool) -> BatchOutput:
    """The output for an input whose results have these ids; nothing is written yet.

    Raises RequestError for a target that is the input itself or no file, whose folder is missing, or, without `force`,
    that holds anything but results of this input.
    """
    if not target.absolute().parent.is_dir():
        raise RequestError(complaint("output folder", str(target.absolute().parent), "an existing folder"))
    kept: dict[str, bytes] = {}
    faults = []
    for path in (target, partial_of(target)):
        if not os.path.lexists(path):
            continue
        if not path.is_file():
            raise RequestError(complaint("output file", str(path), "a file or nothing"))
        if path.samefile(source):
            raise RequestError(complaint("output file", str(path), "a file other than the input"))
        found = _results(path, ids)
        if found is not None:
            kept.update(found)
        elif not force:
            expected = "results of this input under these options, or nothing"
            faults.append(complaint("output file", str(path), expected, "name another file or use force"))
    if faults:
        raise RequestError(combined(faults))
    return BatchOutput(target, kept)


def _results(path: Path, ids: Collection[str]) -> dict[str, bytes] | None:
    """Complete lines by id; None unless all are results of this input.  A last line without its end is dropped."""
    try:
        *lines, rest = path.read_bytes().split(b"\n")
    except OSError as error:
        raise RequestError(complaint("output file", str(path), "a readable file", error.strerror)) from error
    found = {}
    for line in lines:
        try:
            document = parse_object(line)
        except ValueError:
            return None
        name = document.get("id")
        if not isinstance(name, str) or name not in ids or "error" not in document:
            return None
        found[name] = line
    # A foreign text without any line end must not pass for a line cut off by an interruption.
    return found if rest.startswith(RESULT_START) or RESULT_START.startswith(rest) else None


def _encoded(result: dict[str, Any]) -> bytes:
    try:
        return json.dumps(result, ensure_ascii=False, allow_nan=False).encode()
    except UnicodeEncodeError:  # a caller's text may hold half a surrogate pair, which only an escape can spell
        return json.dumps(result, allow_nan=False).encode()


def _refused(path: Path, error: OSError) -> CapacityError:
    return CapacityError(complaint(f"writing {path}", str(error), "a file system that accepts it"))
