"""The header of one safetensors file, read strictly.

    bytes 0..7        n, little-endian, at most 100 MB
    bytes 8..8+n      JSON: name -> {dtype, shape, data_offsets [begin, end)}, optional __metadata__ (text to text)
    then the data     tensors back to back: the first begins at 0, each at the end of another, the last ends the file

Anything else is a fault, and all faults of a header are listed.  Knows nothing of configs; integers only.
"""

import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

from flash41.checkpoint.faults import Fault, FaultKind, FaultyCheckpointError, brief, mismatch, refuse
from flash41.checkpoint.stored import StoredDtype
from flash41.checkpoint.strict_json import parse_object

MAX_HEADER_BYTES = 100_000_000
MAX_AXES = 8
LIMIT = 2**63
"""Bound of sizes and offsets."""
METADATA = "__metadata__"
DTYPES = {dtype.value: dtype for dtype in StoredDtype}
ENTRY_KEYS = {"dtype", "shape", "data_offsets"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorEntry:
    """Where one tensor lies."""

    dtype: StoredDtype
    """Format of an element."""
    shape: tuple[int, ...]
    """As stored."""
    begin: int
    """First byte, counted from the shard's data."""
    end: int
    """Byte behind the last, counted from the shard's data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileIdentity:
    """What must not change while a file is mapped."""

    file_bytes: int
    """Length."""
    mtime_ns: int
    """Time of the last write."""
    inode: int
    """Which file the name meant."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardHeader:
    """One shard, as its header describes it."""

    path: Path
    """File."""
    tensors: Mapping[str, TensorEntry]
    """By name, in header order."""
    metadata: Mapping[str, str]
    """Free text of the writer."""
    data_start: int
    """Offset of the first tensor in the file."""
    identity: FileIdentity
    """The file as it was when the header was read."""

    @property
    def payload_bytes(self) -> int:
        """Bytes of all tensors."""
        return self.identity.file_bytes - self.data_start


def read_identity(path: Path) -> FileIdentity:
    """Length, time and inode of a file now; OSError where it cannot be reached or is no regular file."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise OSError("not a regular file")
    return FileIdentity(file_bytes=status.st_size, mtime_ns=status.st_mtime_ns, inode=status.st_ino)


def read_header(path: Path) -> ShardHeader:
    """The header of a shard; FaultyCheckpointError lists everything that is wrong with it."""
    try:
        identity = read_identity(path)
        with path.open("rb") as file:
            prefix = file.read(8)
            header_bytes = _header_bytes(path.name, prefix, identity.file_bytes)
            data = file.read(header_bytes)
    except OSError as error:
        refuse(FaultKind.SHARD, mismatch(path.name, str(error), "a readable file"))
    document = _document(path.name, data)
    metadata = document.pop(METADATA, {})
    faults = list(_metadata_faults(path.name, metadata))
    tensors: dict[str, TensorEntry] = {}
    layouts: dict[str, _Layout] = {}
    for name, value in document.items():
        entry = _entry(value, layouts)
        if isinstance(entry, TensorEntry):
            tensors[name] = entry
        else:
            faults.append(_fault(f"{path.name}: tensor {brief(name)}: {entry}"))
        if not (name and name.isascii() and name.isprintable()):
            faults.append(_fault(f"{path.name}: " + mismatch("tensor name", name, "printable ASCII")))
    if not faults:
        faults = list(_layout_faults(path.name, tensors, identity.file_bytes, 8 + header_bytes))
    if faults:
        raise FaultyCheckpointError(faults)
    texts = {str(key): str(text) for key, text in metadata.items()} if isinstance(metadata, dict) else {}
    return ShardHeader(path=path, tensors=tensors, metadata=texts, data_start=8 + header_bytes, identity=identity)


def _fault(message: str) -> Fault:
    return Fault(kind=FaultKind.HEADER, message=message)


def _header_bytes(shard: str, prefix: bytes, file_bytes: int) -> int:
    if len(prefix) < 8:
        refuse(FaultKind.SHARD, f"{shard}: got {file_bytes} bytes, expected at least the 8 of a header length")
    header_bytes = int.from_bytes(prefix, "little")
    if header_bytes > MAX_HEADER_BYTES:
        refuse(
            FaultKind.HEADER,
            f"{shard}: " + mismatch("header length", header_bytes, f"<= {MAX_HEADER_BYTES} (no safetensors file?)"),
        )
    if 8 + header_bytes > file_bytes:
        refuse(FaultKind.SHARD, f"{shard}: got {file_bytes} bytes, expected at least {8 + header_bytes} for its header")
    return header_bytes


def _document(shard: str, data: bytes) -> dict[str, object]:
    if data[:1] != b"{":
        refuse(FaultKind.HEADER, f"{shard}: " + mismatch("header", data[:8], "a JSON object"))
    try:
        return parse_object(data)
    except ValueError as error:
        refuse(FaultKind.HEADER, f"{shard}: header: {error}, expected strict JSON")


def _metadata_faults(shard: str, metadata: object) -> Iterator[Fault]:
    if not isinstance(metadata, dict) or any(not isinstance(text, str) for text in metadata.values()):
        yield _fault(f"{shard}: " + mismatch(METADATA, type(metadata).__name__, "an object of texts"))


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < LIMIT  # a bool is no count


_Layout = tuple[StoredDtype, tuple[int, ...], int]
"""Format, shape and bytes of a tensor."""


def _entry(value: object, layouts: dict[str, _Layout]) -> TensorEntry | str:
    """The entry, or what is wrong with it; `layouts` keeps the few that the tensors of a shard share."""
    if not isinstance(value, dict) or value.keys() != ENTRY_KEYS:
        keys = sorted(value) if isinstance(value, dict) else type(value).__name__
        return mismatch("entry", keys, "exactly dtype, shape, data_offsets")
    name, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    key = f"{name} {shape}"  # as text, in which 1, 1.0 and True differ
    if key not in layouts:
        layout = _layout(name, shape)
        if isinstance(layout, str):
            return layout
        layouts[key] = layout
    dtype, sizes, expected = layouts[key]
    if not isinstance(offsets, list) or len(offsets) != 2 or not (_is_count(offsets[0]) and _is_count(offsets[1])):
        return mismatch("data_offsets", offsets, "two integers in [0, 2^63)")
    begin, end = offsets
    if end - begin != expected:
        return mismatch("data_offsets", offsets, f"{expected} bytes for {name} {shape}")
    return TensorEntry(dtype=dtype, shape=sizes, begin=begin, end=end)


def _layout(name: object, shape: object) -> _Layout | str:
    if not isinstance(name, str) or name not in DTYPES:
        return mismatch("dtype", name, f"one of {', '.join(DTYPES)}")
    if not isinstance(shape, list) or len(shape) > MAX_AXES or not all(map(_is_count, shape)):
        return mismatch("shape", shape, f"at most {MAX_AXES} integers in [0, 2^63)")
    dtype = DTYPES[name]
    return dtype, tuple(shape), prod(shape) * dtype.element_bytes


def _layout_faults(shard: str, tensors: Mapping[str, TensorEntry], file_bytes: int, data_start: int) -> Iterator[Fault]:
    position = 0
    by_position = sorted((entry.begin, entry.end, name) for name, entry in tensors.items())
    for begin, end, name in by_position:
        if begin != position:
            word = "overlap" if begin < position else "gap"
            got = mismatch("data_offsets", [begin, end], f"begin {position} ({word} in the data)")
            yield _fault(f"{shard}: tensor {brief(name)}: {got}")
        position = max(position, end)
    if data_start + position != file_bytes:
        yield Fault(kind=FaultKind.SHARD, message=f"{shard}: got {file_bytes} bytes, expected {data_start + position}")
