"""Every byte of a shard, read once from front to back: its SHA-256, and what no healthy weight holds.

    scales       byte 255 (NaN)
    E4M3         codes 127 and 255 (NaN)
    BF16, F32    infinities and NaN
    all          nothing but zeros, as holes of a lost copy read

Memory is one piece, whatever the size of a tensor.  Packed FP4 has no code that is no number.  Knows nothing of
configs.
spec: number-formats.md section 1, config.md section 4.9 rule C3.
"""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from io import BufferedReader

import numpy as np

from flash41.checkpoint.faults import Fault, FaultKind
from flash41.checkpoint.headers import ShardHeader, TensorEntry, read_identity
from flash41.checkpoint.stored import StoredDtype

PIECE_BYTES = 1 << 23
NAN_SCALE = 255
BAD_BYTES = {StoredDtype.F8_E8M0: (b"\xff",), StoredDtype.F8_E4M3: (b"\x7f", b"\xff")}
"""Bytes that are NaN."""
BAD_EXPONENTS = {StoredDtype.BF16: ("<u2", 0x7F80), StoredDtype.F32: ("<u4", 0x7F800000)}
"""Words, and the bits all of which are set in infinities and NaN."""
MAY_BE_ZERO = (".bias", ".bias_vl", "attn_sink", "_base")
"""Ends of names of vectors that are added to something, so that zero is a value like any other."""

Progress = Callable[[int], None]
"""Called with the bytes read since the last call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardScan:
    """What reading a shard found."""

    sha256: str
    """Of the whole file, hexadecimal."""
    faults: tuple[Fault, ...]
    """One per tensor and kind of trouble."""


@dataclass(slots=True)
class _Seen:
    """What is known of a tensor so far."""

    num_bad: int = 0
    first_bad: int = 0
    any_bit: bool = False


def scan_shard(header: ShardHeader, progress: Progress) -> ShardScan:
    """Reads a shard whose header was read; a file that changed meanwhile is a fault of its own."""
    digest = hashlib.sha256()
    faults: list[Fault] = []
    try:
        with header.path.open("rb") as file:
            digest.update(file.read(header.data_start))
            progress(header.data_start)
            # One buffer for all pieces: fresh memory for each would cost as much as reading it.
            buffer = bytearray(PIECE_BYTES)
            for name, entry in sorted(header.tensors.items(), key=lambda item: item[1].begin):
                seen = _Seen()
                for length in _pieces(file, buffer, entry.end - entry.begin):
                    digest.update(memoryview(buffer)[:length])
                    _look(buffer, length, entry.dtype, seen)
                    progress(length)
                faults += _faults(name, entry, seen)
        if read_identity(header.path) != header.identity:
            raise OSError("changed while it was read")
    except OSError as error:
        message = f"{header.path.name}: {error}, expected a file that stays as it is"
        faults = [Fault(kind=FaultKind.CHANGED, message=message)]
    return ShardScan(sha256=digest.hexdigest(), faults=tuple(faults))


def _pieces(file: BufferedReader, buffer: bytearray, num_bytes: int) -> Iterator[int]:
    """Lengths of the pieces that lie in the buffer, one after the other."""
    while num_bytes:
        length = min(len(buffer), num_bytes)
        if file.readinto(memoryview(buffer)[:length]) < length:
            raise OSError("ended before its last tensor")
        num_bytes -= length
        yield length


def _look(buffer: bytearray, length: int, dtype: StoredDtype, seen: _Seen) -> None:
    """Adds a piece, which holds whole elements, to what is known of a tensor."""
    seen.any_bit = seen.any_bit or bool(np.frombuffer(buffer, dtype=np.uint8, count=length).any())
    count, first = _bad(buffer, length, dtype)
    if count and not seen.num_bad:
        seen.first_bad += first
    elif not seen.num_bad:
        seen.first_bad += length // dtype.element_bytes
    seen.num_bad += count


def _bad(buffer: bytearray, length: int, dtype: StoredDtype) -> tuple[int, int]:
    """How many elements are no finite number, and which is the first; zeros where all are."""
    if dtype in BAD_BYTES:
        # Searching for a byte costs a fraction of counting it, and there should be none.
        found = {byte: place for byte in BAD_BYTES[dtype] if (place := buffer.find(byte, 0, length)) >= 0}
        return sum(buffer.count(byte, 0, length) for byte in found), min(found.values(), default=0)
    if dtype not in BAD_EXPONENTS:
        return 0, 0
    word, exponent = BAD_EXPONENTS[dtype]
    bad = (np.frombuffer(buffer, dtype=word, count=length // dtype.element_bytes) & exponent) == exponent
    count = int(np.count_nonzero(bad))
    return count, int(bad.argmax()) if count else 0


def _faults(name: str, entry: TensorEntry, seen: _Seen) -> Iterator[Fault]:
    if seen.num_bad:
        place = [int(index) for index in np.unravel_index(seen.first_bad, entry.shape)] if entry.shape else []
        more = f"; {seen.num_bad:,} such" if seen.num_bad > 1 else ""
        if entry.dtype is StoredDtype.F8_E8M0:
            message, kind = f"{name}: scale byte {NAN_SCALE} (NaN) at {place}{more}", FaultKind.SCALE
        else:
            message = f"{name}: got NaN or infinity at {place}, expected finite {entry.dtype.value} values{more}"
            kind = FaultKind.WEIGHT
        yield Fault(kind=kind, message=message, names=(name,))
    if not seen.any_bit and entry.end > entry.begin and not name.endswith(MAY_BE_ZERO):
        message = f"{name}: got nothing but zero bytes, expected weights (a hole, as an incomplete copy leaves)"
        yield Fault(kind=FaultKind.WEIGHT, message=message, names=(name,))
