"""Tensors read into memory once, in one allocation that belongs to this process.

Each has the bytes and the dtype of the mapping, so that nothing computed from it differs.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor

from flash41.checkpoint.reader import DTYPES, MappedShards
from flash41.checkpoint.stored import TensorSpec

ALIGNMENT = 64
"""A cache line, and the widest vector register."""
PIECE_BYTES = 8 << 20
NUM_THREADS = 4
"""Pieces read side by side: one at a time leaves most disks idle between them."""

Progress = Callable[[int, int], None]
"""Called with (bytes read, bytes in all)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Piece:
    name: str
    first: int
    target: Tensor


def read_resident(
    shards: MappedShards, specs: Sequence[TensorSpec], progress: Progress | None = None
) -> dict[str, Tensor]:
    """The tensors by name; FaultyCheckpointError when a file changed."""
    starts, end = [], 0
    for spec in specs:
        starts.append(end)
        end += -(-spec.num_bytes // ALIGNMENT) * ALIGNMENT
    memory = torch.empty(end, dtype=torch.uint8)
    flat = {spec.name: memory[start : start + spec.num_bytes] for spec, start in zip(specs, starts, strict=True)}
    _read(shards, [piece for name, target in flat.items() for piece in _pieces(name, target)], progress)
    return {spec.name: flat[spec.name].view(DTYPES[spec.dtype]).view(spec.shape) for spec in specs}


def _pieces(name: str, target: Tensor) -> list[_Piece]:
    return [
        _Piece(name=name, first=first, target=target[first : first + PIECE_BYTES])
        for first in range(0, len(target), PIECE_BYTES)
    ]


def _read(shards: MappedShards, pieces: Sequence[_Piece], progress: Progress | None) -> None:
    total, done = sum(len(piece.target) for piece in pieces), 0

    def read(piece: _Piece) -> int:
        shards.read_into(piece.name, piece.target, piece.first)
        return len(piece.target)

    pool = ThreadPoolExecutor(NUM_THREADS, "flash41-reading")
    try:
        for count in pool.map(read, pieces):
            done += count
            if progress is not None:
                progress(done, total)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
