"""What the benchmarks of slices share: making one, counting the bytes that a forward must move, dropping pages."""

import mmap
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from flash41 import LLM, SamplingParams
from flash41.checkpoint.embedded import tiny_config, tiny_tokenizer_files
from flash41.checkpoint.release import release_config
from flash41.checkpoint.residence import WeightSizes, weight_sizes
from flash41.checkpoint.stored import Scope
from flash41.config.huggingface import read_config
from flash41.config.slices import SliceWish
from flash41.tools.slices import make_slice

FIRST_ID, SEED = 3, 41


def slice_in(folder: Path, quick: bool, layers: int, experts: int, engram: bool = True) -> Path:
    """A slice of the release, or with `quick` one of the small model of `make-tiny`, in a folder."""
    directory = folder / "slice"
    if quick:
        files = tiny_tokenizer_files()
        tokenizer = folder / "tokenizer.json"
        tokenizer.write_bytes(files["tokenizer.json"])
        wish = SliceWish(layers=4, experts=12, engram_rows=600 if engram else None)
        make_slice(directory, tiny_config(), wish, SEED, tokenizer)
        for name in files.keys() - {"tokenizer.json"}:
            (directory / name).write_bytes(files[name])
    else:
        wish = SliceWish(layers=layers, experts=experts, engram_rows=48_000 if engram else None)
        make_slice(directory, release_config(), wish, SEED)
    return directory


def sizes_of(directory: Path) -> WeightSizes:
    return weight_sizes(read_config(directory), [Scope.BACKBONE])


class Moved:
    """Bytes of weights that forwards read, each weight once per forward: dense ones, and experts that were chosen."""

    def __init__(self, llm: LLM, sizes: WeightSizes) -> None:
        self._sizes = sizes
        self._num_experts = 0
        kernels = llm._model.kernels
        self._experts = kernels.experts
        kernels.experts = self._counted  # type: ignore[method-assign]

    def _counted(self, x: Tensor, ids: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
        self._num_experts += len(ids.unique())
        return self._experts(x, ids, *rest)

    def take(self) -> int:
        """Bytes of the forward since the last call."""
        count, self._num_experts = self._num_experts, 0
        return self._sizes.dense_bytes + count * self._sizes.one_expert_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Forward:
    """One forward: a prompt, or one token of an answer."""

    seconds: float
    num_bytes: int


def forwards(
    llm: LLM, moved: Moved, prompt: list[int], num_tokens: int, before: Any = lambda: None
) -> Iterator[Forward]:
    """The prompt's forward and those of the tokens behind it; `before` runs in front of each, untimed."""
    events = llm.stream(prompt, SamplingParams(max_tokens=num_tokens + 1, seed=1, ignore_eos=True))
    for _ in range(num_tokens + 1):
        before()
        moved.take()
        started = time.perf_counter()
        next(events)
        yield Forward(seconds=time.perf_counter() - started, num_bytes=moved.take())
    events.close()


def prompt_of(length: int, salt: int) -> list[int]:
    """Ids that no other prompt begins with."""
    return [0, FIRST_ID + salt, *(FIRST_ID + (17 * position + salt) % 900 for position in range(length - 2))]


class Pages:
    """The files of a checkpoint, and those of their pages that are in memory."""

    def __init__(self, llm: LLM) -> None:
        self._shards = llm._model.checkpoint._shards
        self.paths = [header.path for header in self._shards.files.shards.values()]

    def drop(self) -> None:
        """Takes all of them out of memory, this process's mappings first, as mapped pages stay."""
        for name in self._shards.files.shards:
            self._shards._mapping(name).madvise(mmap.MADV_DONTNEED)
        for path in self.paths:
            with opened(path) as descriptor:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)


@contextmanager
def opened(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def disk_bytes() -> int:
    """Bytes that this process has had read from disks."""
    text = Path("/proc/self/io").read_text()
    return int(next(line for line in text.splitlines() if line.startswith("read_bytes")).split()[1])
