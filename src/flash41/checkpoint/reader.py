"""Bytes of shards, mapped into memory and read when touched.

A tensor is a view of the mapping: E4M3, E8M0 and packed FP4 as uint8, BF16 and F32 in their own dtype.  The mapping is
read-only, so that shards larger than the memory can be mapped and ranks share one copy; writing to such a view is a
crash.  Nothing is mapped before a tensor of its shard is asked for.
"""

import mmap
import os
import threading
import warnings
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

import torch
from torch import Tensor

from flash41.checkpoint.directory import CheckpointFiles
from flash41.checkpoint.faults import Fault, FaultKind, FaultyCheckpointError, refuse
from flash41.checkpoint.headers import ShardHeader, read_identity
from flash41.checkpoint.read_ahead import Extent
from flash41.checkpoint.stored import StoredDtype

DTYPES = {
    StoredDtype.I8: torch.uint8,
    StoredDtype.F8_E4M3: torch.uint8,
    StoredDtype.F8_E8M0: torch.uint8,
    StoredDtype.BF16: torch.bfloat16,
    StoredDtype.F32: torch.float32,
}

CHUNK_BYTES = 2**24


class MappedShards:
    """The tensors of a checkpoint by name, without a copy."""

    def __init__(self, files: CheckpointFiles) -> None:
        self.files = files
        self._mappings: dict[str, mmap.mmap] = {}
        self._bytes: dict[str, Tensor] = {}
        self._descriptors: dict[str, int] = {}
        self._lock = threading.Lock()

    def tensor(self, name: str) -> Tensor:
        """View in the stored dtype (codes and scales as uint8); a copy only where the file misaligns it.

        FaultyCheckpointError when the file changed before it was mapped; KeyError for an unknown name.
        """
        shard = self.files.shard_of[name]
        entry = self.files.shards[shard].tensors[name]
        start = self.files.shards[shard].data_start
        flat = self._shard_bytes(shard)[start + entry.begin : start + entry.end]
        dtype = DTYPES[entry.dtype]
        if (start + entry.begin) % entry.dtype.element_bytes:
            flat = flat.clone()
        return flat.view(dtype).view(entry.shape)

    def find_byte(self, name: str, value: int) -> int | None:
        """Index of the first such byte of a tensor, or None; maps nothing.

        Reads the file, because touching scattered pages of a mapping makes the system read far more around them.
        """
        header = self.files.shards[self.files.shard_of[name]]
        entry = header.tensors[name]
        with _opened(header) as file:
            for begin in range(entry.begin, entry.end, CHUNK_BYTES):
                length = min(CHUNK_BYTES, entry.end - begin)
                found = os.pread(file.fileno(), length, header.data_start + begin).find(bytes([value]))
                if found >= 0:
                    return begin - entry.begin + found
        return None

    def extent(self, name: str) -> Extent:
        """Where a tensor lies: an open file and a range of it."""
        shard = self.files.shard_of[name]
        header = self.files.shards[shard]
        entry = header.tensors[name]
        with self._lock:
            if shard not in self._descriptors:
                with _opened(header) as file:
                    self._descriptors[shard] = os.dup(file.fileno())
                weakref.finalize(self, os.close, self._descriptors[shard])
        return Extent(
            descriptor=self._descriptors[shard],
            begin=header.data_start + entry.begin,
            num_bytes=entry.end - entry.begin,
        )

    def read_into(self, name: str, target: Tensor, first: int = 0) -> None:
        """Fills a contiguous uint8 tensor with a tensor's stored bytes from `first` on, past the mapping.

        FaultyCheckpointError when the file is shorter than it was.
        """
        extent = self.extent(name)
        view, done = memoryview(target.numpy().data), 0
        while done < len(view):
            try:
                count = os.preadv(extent.descriptor, [view[done:]], extent.begin + first + done)
            except OSError as error:
                refuse(FaultKind.CHANGED, f"{name}: {error}, expected a file that can be read")
            if count == 0:
                refuse(FaultKind.CHANGED, f"{name}: its file ends early, expected the file that was opened")
            done += count

    def advise_random(self, name: str) -> None:
        """Tells the system that single rows of a tensor will be read, so that it reads no pages around them."""
        shard = self.files.shard_of[name]
        header = self.files.shards[shard]
        entry = header.tensors[name]
        if hasattr(mmap, "MADV_RANDOM") and entry.end > entry.begin:
            begin = (header.data_start + entry.begin) // mmap.PAGESIZE * mmap.PAGESIZE
            self._mapping(shard).madvise(mmap.MADV_RANDOM, begin, header.data_start + entry.end - begin)

    def check_unchanged(self) -> None:
        """FaultyCheckpointError when a shard is no longer the file whose header was read.

        Reading a mapped file that has shrunk kills the process, so long-running users call this between steps.
        """
        faults = [fault for header in self.files.shards.values() for fault in _changes(header)]
        if faults:
            raise FaultyCheckpointError(faults)

    def _mapping(self, shard: str) -> mmap.mmap:
        with self._lock:
            if shard not in self._mappings:
                self._mappings[shard] = _mapped(self.files.shards[shard])
            return self._mappings[shard]

    def _shard_bytes(self, shard: str) -> Tensor:
        if shard not in self._bytes:
            mapping = self._mapping(shard)
            with self._lock, warnings.catch_warnings():
                # torch cannot mark a tensor read-only and says so; that the mapping is, is the point.
                warnings.filterwarnings("ignore", message="The given buffer is not writable", category=UserWarning)
                self._bytes[shard] = torch.frombuffer(mapping, dtype=torch.uint8)
        return self._bytes[shard]


def _mapped(header: ShardHeader) -> mmap.mmap:
    with _opened(header) as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


@contextmanager
def _opened(header: ShardHeader) -> Iterator[BinaryIO]:
    """The shard's file, if it is still the one whose header was read."""
    for fault in _changes(header):
        raise FaultyCheckpointError([fault])
    try:
        with header.path.open("rb", buffering=0) as file:
            yield file
    except (OSError, ValueError) as error:
        refuse(FaultKind.CHANGED, f"{header.path.name}: {error}, expected a file that can be read and mapped")


def _changes(header: ShardHeader) -> Iterator[Fault]:
    name, known = header.path.name, header.identity
    try:
        now = read_identity(header.path)
    except OSError as error:
        yield Fault(kind=FaultKind.CHANGED, message=f"{name}: {error}, expected the file that was opened")
        return
    if now.file_bytes != known.file_bytes:
        message = f"{name}: got {now.file_bytes} bytes, expected {known.file_bytes} (changed while in use)"
        yield Fault(kind=FaultKind.CHANGED, message=message)
    elif now != known:
        message = f"{name}: got another file or newer content, expected the file that was opened (changed while in use)"
        yield Fault(kind=FaultKind.CHANGED, message=message)
