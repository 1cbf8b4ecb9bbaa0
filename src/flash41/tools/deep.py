"""The deep part of an examination: every shard read once, resumable, and its checksum compared where one is known.

    state   JSON beside the report: per shard its length, time, checksum and faults; written after every shard

A scan that was interrupted goes on behind the last whole shard; a shard that changed since is read again.  Nothing is
written but the state file, and only where one was named.
"""

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from flash41.checkpoint.directory import CheckpointFiles
from flash41.checkpoint.faults import Fault, FaultKind
from flash41.checkpoint.headers import FileIdentity
from flash41.checkpoint.scan import ShardScan, scan_shard
from flash41.errors import CheckpointError, complaint

FORMAT = 1
"""Of a state file."""
SUM_LINE = re.compile(r"([0-9a-fA-F]{64}) [ *](.+)")
"""A line of `sha256sum`."""

Progress = Callable[[str, int], None]
"""Called with a shard's name and the bytes read since the last call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepReport:
    """What reading every byte found."""

    sha256: Mapping[str, str]
    """Checksum of every shard that was read, by file name."""
    faults: tuple[Fault, ...]
    """What is wrong with the weights, shard by shard."""
    num_resumed: int
    """Shards that an earlier, interrupted scan had read."""
    num_compared: int
    """Shards whose checksum was known and compared."""


def read_sums(path: Path) -> dict[str, str]:
    """File name to checksum from the output of `sha256sum`; CheckpointError for a line that is none of it."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise CheckpointError(complaint(f"checksums {path}", str(error), "a readable text file")) from error
    sums = {}
    for number, line in enumerate(lines, 1):
        found = SUM_LINE.fullmatch(line)
        if found is None and line.strip():
            raise CheckpointError(complaint(f"checksums {path} line {number}", line[:80], "'SHA-256  FILE'"))
        if found is not None:
            sums[Path(found[2]).name] = found[1].lower()
    return sums


def scan_files(
    files: CheckpointFiles, *, state: Path | None, sums: Mapping[str, str], progress: Progress | None = None
) -> DeepReport:
    """Reads every readable shard of a survey, except those a state file already has."""
    known = {} if state is None else _read_state(state)
    scans: dict[str, ShardScan] = {}
    num_resumed = 0
    for shard, header in files.shards.items():
        found = known.get(shard)
        if found is not None and found[0] == header.identity:
            scans[shard] = found[1]
            num_resumed += 1
            (progress or _silent)(shard, header.identity.file_bytes)
            continue
        scans[shard] = scan_shard(header, partial(progress or _silent, shard))
        if state is not None:
            known[shard] = (header.identity, scans[shard])
            _write_state(state, known)
    faults = [fault for scan in scans.values() for fault in scan.faults]
    faults += _differences(files, scans, sums)
    return DeepReport(
        sha256={shard: scan.sha256 for shard, scan in scans.items()},
        faults=tuple(faults),
        num_resumed=num_resumed,
        num_compared=len(sums.keys() & scans.keys()),
    )


def _silent(shard: str, num_bytes: int) -> None:
    """Progress that nobody watches."""


def _differences(files: CheckpointFiles, scans: Mapping[str, ShardScan], sums: Mapping[str, str]) -> Iterator[Fault]:
    for shard in sorted(sums.keys() & scans.keys()):
        if scans[shard].sha256 != sums[shard]:
            message = f"{shard}: got SHA-256 {scans[shard].sha256}, expected {sums[shard]}"
            yield Fault(kind=FaultKind.CHECKSUM, message=message, names=(shard,))
    missing = sorted(name for name in sums if name.endswith(".safetensors") and name not in files.present)
    if missing:
        message = f"checksums: got no files {missing}, expected every shard that has a checksum"
        yield Fault(kind=FaultKind.CHECKSUM, message=message, names=tuple(missing))


State = dict[str, tuple[FileIdentity, ShardScan]]


def _read_state(path: Path) -> State:
    """What an earlier scan left; empty where there is no such file.  CheckpointError for a file of another kind."""
    try:
        document = json.loads(path.read_bytes())
        if document["format"] != FORMAT:
            raise ValueError(f"format {document['format']}")
        return {shard: _record(value) for shard, value in document["shards"].items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        remedy = "name another file, or delete it to begin again"
        got = f"{type(error).__name__}: {error}"
        raise CheckpointError(complaint(f"state file {path}", got, "the state of a deep scan", remedy)) from error


def _record(value: Mapping[str, object]) -> tuple[FileIdentity, ShardScan]:
    identity, faults, sha256 = value["identity"], value["faults"], value["sha256"]
    if not isinstance(identity, dict) or not isinstance(faults, list) or not isinstance(sha256, str):
        raise ValueError("a shard without identity, faults and checksum")
    found = [
        Fault(kind=FaultKind(fault["kind"]), message=str(fault["message"]), names=tuple(fault["names"]))
        for fault in faults
    ]
    return FileIdentity(**identity), ShardScan(sha256=sha256, faults=tuple(found))


def _write_state(path: Path, state: State) -> None:
    """Replaces the file in one step, so that an interruption leaves the old one or the new one."""
    shards = {
        shard: {
            "identity": asdict(identity),
            "sha256": scan.sha256,
            "faults": [{**asdict(fault), "kind": fault.kind.value} for fault in scan.faults],
        }
        for shard, (identity, scan) in state.items()
    }
    fresh = path.with_name(path.name + ".new")
    fresh.write_text(json.dumps({"format": FORMAT, "shards": shards}), encoding="utf-8")
    os.replace(fresh, path)
