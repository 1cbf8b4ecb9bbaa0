"""The files of a checkpoint directory: index, shards, and whether they agree.

    config.json
    model.safetensors                                  one file, no index; or
    model.safetensors.index.json                       {metadata: {total_size}, weight_map: name -> shard}
    model-00001-of-00048.safetensors ...

Reads headers only.  A survey never stops at the first fault: what could be read is there, beside everything that is
wrong.  Knows nothing of configs; integers only.  spec: checkpoint.md sections 4 and 7.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

from flash41.checkpoint.faults import Fault, FaultKind, FaultyCheckpointError, listed, mismatch, refuse
from flash41.checkpoint.foreign import foreign_files, foreign_names
from flash41.checkpoint.headers import ShardHeader, TensorEntry, read_header, read_identity
from flash41.checkpoint.strict_json import parse_object

CONFIG_FILE = "config.json"
INDEX_FILE = "model.safetensors.index.json"
SINGLE_FILE = "model.safetensors"
MAX_INDEX_BYTES = 256 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Index:
    """`model.safetensors.index.json`."""

    total_bytes: int
    """`metadata.total_size`: bytes of all tensors."""
    shard_of: Mapping[str, str]
    """`weight_map`: tensor name to file name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointFiles:
    """The shards of a directory that could be read."""

    directory: Path
    """Folder."""
    present: frozenset[str]
    """Names of everything in it."""
    index: Index | None
    """None for a single file."""
    shards: Mapping[str, ShardHeader]
    """By file name, ascending."""
    shard_of: Mapping[str, str]
    """Tensor name to file name, from the headers."""
    unreadable: frozenset[str]
    """Tensors that the index places in shards which could not be read."""

    def entry(self, name: str) -> TensorEntry:
        """Where a tensor lies; KeyError for a name no header holds."""
        return self.shards[self.shard_of[name]].tensors[name]

    @property
    def payload_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(header.payload_bytes for header in self.shards.values())

    @property
    def file_bytes(self) -> int:
        """Bytes of all shards."""
        return sum(header.identity.file_bytes for header in self.shards.values())


def open_directory(directory: Path) -> CheckpointFiles:
    """The files of a checkpoint; FaultyCheckpointError lists all that is wrong with them."""
    files, faults = survey(directory)
    if faults:
        raise FaultyCheckpointError(faults, f"checkpoint {directory}")
    return files


def survey(directory: Path) -> tuple[CheckpointFiles, list[Fault]]:
    """What could be read of a checkpoint directory, and everything that is wrong with it."""
    try:
        present = frozenset(path.name for path in directory.iterdir())
    except OSError as error:
        message = mismatch(f"checkpoint {directory}", str(error), "a readable directory")
        return _nothing(directory), [Fault(kind=FaultKind.DIRECTORY, message=message)]
    faults = list(_directory_faults(directory, present))
    index: Index | None = None
    if INDEX_FILE in present:
        try:
            index = read_index(directory)
        except FaultyCheckpointError as error:
            faults += error.faults
    wanted = sorted(set(index.shard_of.values()) if index else {name for name in present if _is_shard(name)})
    shards: dict[str, ShardHeader] = {}
    for name in wanted:
        if name not in present:
            continue
        try:
            shards[name] = read_header(directory / name)
        except FaultyCheckpointError as error:
            faults += error.faults
    shard_of, repeated = _locations(shards)
    faults += repeated
    if index:
        faults += _index_faults(index, shards, present)
    elif INDEX_FILE not in present:
        faults += _single_faults(present)
    faults += foreign_names(shard_of)
    lost = frozenset(name for name, shard in index.shard_of.items() if shard not in shards) if index else frozenset()
    files = CheckpointFiles(
        directory=directory, present=present, index=index, shards=shards, shard_of=shard_of, unreadable=lost
    )
    return files, faults


def read_index(directory: Path) -> Index:
    """The index of a directory; FaultyCheckpointError unless it is a total and a map of names to plain file names."""
    path = directory / INDEX_FILE
    try:
        size = read_identity(path).file_bytes
        if size > MAX_INDEX_BYTES:
            refuse(FaultKind.INDEX, mismatch(INDEX_FILE, size, f"at most {MAX_INDEX_BYTES} bytes"))
        document = parse_object(path.read_bytes())
    except (OSError, ValueError) as error:
        refuse(FaultKind.INDEX, f"{INDEX_FILE}: {error}, expected strict JSON")
    metadata, weight_map = document.get("metadata"), document.get("weight_map")
    total = metadata.get("total_size") if isinstance(metadata, dict) else None
    faults: list[str] = []
    if type(total) is not int or total < 0:
        faults.append(mismatch(f"{INDEX_FILE}: metadata.total_size", total, "an integer >= 0"))
    if not isinstance(weight_map, dict) or not weight_map:
        faults.append(mismatch(f"{INDEX_FILE}: weight_map", weight_map, "a non-empty object"))
    else:
        texts = [shard for shard in weight_map.values() if isinstance(shard, str)]
        plain = {shard for shard in set(texts) if _is_shard(shard)}
        if len(texts) < len(weight_map) or len(plain) < len(set(texts)):
            odd = [name for name, shard in weight_map.items() if not isinstance(shard, str) or shard not in plain]
            shown = mismatch(f"weight_map[{odd[0]!a}]", weight_map[odd[0]], "the plain name of a .safetensors file")
            faults.append(f"{INDEX_FILE}: {shown}" + (f"; {len(odd)} such" if len(odd) > 1 else ""))
    if faults or type(total) is not int or not isinstance(weight_map, dict):
        raise FaultyCheckpointError([Fault(kind=FaultKind.INDEX, message=message) for message in faults])
    return Index(total_bytes=total, shard_of=weight_map)


def _is_shard(name: str) -> bool:
    return name.endswith(".safetensors") and PurePath(name).name == name and name.isascii()


def _nothing(directory: Path) -> CheckpointFiles:
    return CheckpointFiles(
        directory=directory, present=frozenset(), index=None, shards={}, shard_of={}, unreadable=frozenset()
    )


def _directory_faults(directory: Path, present: frozenset[str]) -> Iterator[Fault]:
    yield from foreign_files(present)
    if CONFIG_FILE not in present:
        message = f"{CONFIG_FILE}: got no such file, expected the config of a checkpoint in {directory}"
        yield Fault(kind=FaultKind.DIRECTORY, message=message)


def _locations(shards: Mapping[str, ShardHeader]) -> tuple[dict[str, str], list[Fault]]:
    """Tensor name to shard; a name in two shards is a fault and keeps its first place."""
    shard_of: dict[str, str] = {}
    faults: list[Fault] = []
    for shard, header in shards.items():
        for name in shard_of.keys() & header.tensors.keys():
            message = f"tensor {name}: got a place in {shard_of[name]} and in {shard}, expected one"
            faults.append(Fault(kind=FaultKind.SHARD, message=message))
        shard_of.update((name, shard) for name in header.tensors if name not in shard_of)
    return shard_of, faults


def _index_faults(index: Index, shards: Mapping[str, ShardHeader], present: frozenset[str]) -> Iterator[Fault]:
    listed_shards = set(index.shard_of.values())
    missing = sorted(listed_shards - present)
    if missing:
        message = f"shards: missing {listed(missing)}, expected every file that {INDEX_FILE} lists"
        yield Fault(kind=FaultKind.SHARD, message=message, names=tuple(missing))
    unlisted = sorted(name for name in present - listed_shards if _is_shard(name))
    if unlisted:
        message = f"shards: unlisted {listed(unlisted)}, expected only files that {INDEX_FILE} lists{_remedy(unlisted)}"
        yield Fault(kind=FaultKind.SHARD, message=message, names=tuple(unlisted))
    placed: dict[str, set[str]] = {shard: set() for shard in listed_shards}
    for name, shard in index.shard_of.items():
        placed[shard].add(name)
    for shard, header in shards.items():
        for word, names in (
            ("lacks", placed[shard] - header.tensors.keys()),
            ("holds unlisted", header.tensors.keys() - placed[shard]),
        ):
            if names:
                ordered = tuple(sorted(names))
                message = f"{shard}: {word} {listed(ordered)}, expected what {INDEX_FILE} lists"
                yield Fault(kind=FaultKind.INDEX, message=message, names=ordered)
    payload = sum(header.payload_bytes for header in shards.values())
    if len(shards) == len(listed_shards) and payload != index.total_bytes:
        message = f"{INDEX_FILE}: total_size: got {index.total_bytes} bytes, expected {payload}"
        yield Fault(kind=FaultKind.INDEX, message=message)


def _single_faults(present: frozenset[str]) -> Iterator[Fault]:
    shards = sorted(name for name in present if _is_shard(name))
    if shards != [SINGLE_FILE]:
        got = listed(shards) if shards else "no .safetensors file"
        expected = f"{SINGLE_FILE} alone or {INDEX_FILE} with the files it lists"
        message = f"shards: got {got}, expected {expected}{_remedy(shards)}"
        yield Fault(kind=FaultKind.SHARD, message=message, names=tuple(shards))


def _remedy(names: Sequence[str]) -> str:
    """What to do about files that another system's copying leaves behind."""
    return "; files named ._* are notes of macOS and can be deleted" if any(n.startswith("._") for n in names) else ""
