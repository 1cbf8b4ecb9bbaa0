"""Random weights of any size, written as they are made: memory holds a few megabytes of one tensor.

Codes are drawn, not quantised: the bits of a stored element are random within a few binades, and the scale puts the
deviation of a row near 1 over the root of its length, so that activations stay of order one.

    E2M1      any nibble                                deviation 2.93
    E4M3      sign, mantissa, exponents 5 to 8          deviation 1.69      never zero, never NaN
    BF16      sign, mantissa, four exponents in a row
    E8M0      the exponent that fits, or the one below

Unquantised tensors of less than a chunk, and FP32 ones, have the values of `checkpoint.synthetic`, where each kind has
a deviation of its own.  The same seed gives the same bytes everywhere.
"""

import hashlib
import shutil
from collections.abc import Callable, Iterator, Mapping
from math import log2, prod, sqrt
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from flash41.checkpoint.directory import CONFIG_FILE, INDEX_FILE
from flash41.checkpoint.placement import Placement, encode_header, encode_index, place_below
from flash41.checkpoint.randomness import GOLDEN_RATIO, splitmix
from flash41.checkpoint.schema import schema
from flash41.checkpoint.staging import staged
from flash41.checkpoint.stored import StoredDtype, Subsystem, TensorSpec
from flash41.checkpoint.synthetic import HEAD_GAIN, synthetic_weights
from flash41.checkpoint.writer import METADATA, encode_config
from flash41.config.architecture import ModelConfig
from flash41.errors import CapacityError, complaint

CHUNK_BYTES = 1 << 22
"""Bytes of a tensor that are made at a time."""
BYTES_PER_SHARD = 2_000_000_000
RESERVED_BYTES = 64 << 20
"""Disk space that stays free."""

E2M1_DEVIATION = 2.926
E4M3_DEVIATION = 1.689
"""Root of the mean square of what is drawn."""
E4M3_FIRST_EXPONENT = 5
BF16_DEVIATION = 7.024
"""The same of BF16 values with exponents 0 to 3 (1 to 16 apart from their sign)."""
EXPONENT_BIAS = 127

Progress = Callable[[int, int], None]
"""Called with (bytes written, bytes in all)."""


def write_random(
    directory: Path,
    config: ModelConfig,
    seed: int,
    *,
    tokenizer_files: Mapping[str, bytes],
    force: bool = False,
    progress: Progress | None = None,
) -> None:
    """Writes a whole checkpoint of random weights; it appears complete or not at all.

    CapacityError before anything is written when the disk has no room for it; CheckpointError as `staging.staged`.
    """
    placement = place_below(BYTES_PER_SHARD, schema(config).values())
    total_bytes = sum(spec.num_bytes for specs in placement.values() for spec in specs)
    _check_room(directory, total_bytes)
    small = synthetic_weights(config, seed)
    done_bytes = 0
    with staged(directory, force) as folder:
        for name, data in {**_sidecars(config, placement), **tokenizer_files}.items():
            (folder / name).write_bytes(data)
        for shard, specs in placement.items():
            with (folder / shard).open("wb") as file:
                file.write(encode_header(specs, METADATA))
                for spec in specs:
                    for chunk in _small(spec, small) or random_chunks(spec, seed):
                        file.write(chunk.data)
                        done_bytes += chunk.nbytes
                        if progress is not None:
                            progress(done_bytes, total_bytes)


def random_chunks(spec: TensorSpec, seed: int) -> Iterator[NDArray[np.uint8]]:
    """The stored bytes of a tensor from its first to its last, a chunk at a time."""
    digest = hashlib.blake2b(f"{seed}/stream/{spec.name}".encode(), digest_size=8).digest()
    state = int.from_bytes(digest, "little")
    shape = _code_bytes(spec)
    for first in range(0, spec.num_bytes, CHUNK_BYTES):
        num_bytes = min(CHUNK_BYTES, spec.num_bytes - first)
        start = (state + first // 8 * int(GOLDEN_RATIO)) % (1 << 64)
        yield shape(splitmix(start, -(-num_bytes // 8)).view(np.uint8)[:num_bytes])


def _code_bytes(spec: TensorSpec) -> Callable[[NDArray[np.uint8]], NDArray[np.uint8]]:
    """Turns random bytes into stored elements."""
    if spec.dtype is StoredDtype.F8_E4M3:
        return lambda raw: (raw & np.uint8(0x9F)) + np.uint8(E4M3_FIRST_EXPONENT << 3)
    if spec.dtype is StoredDtype.F8_E8M0:
        exponent = np.uint8(EXPONENT_BIAS + round(log2(_code_deviation(spec))))
        return lambda raw: exponent - (raw & np.uint8(1))
    if spec.dtype is StoredDtype.BF16:
        first = np.uint16((EXPONENT_BIAS + round(log2(_deviation(spec) / BF16_DEVIATION))) << 7)
        return lambda raw: ((raw.view("<u2") & np.uint16(0x81FF)) + first).view(np.uint8)
    assert spec.dtype is StoredDtype.I8, f"{spec.name} is {spec.dtype.value} and larger than a chunk"
    return lambda raw: raw


def _code_deviation(spec: TensorSpec) -> float:
    """What a scale multiplies so that values have their deviation; an Engram row has 1, a weight 1 / root of K."""
    if spec.subsystem is Subsystem.ENGRAM_TABLE:
        return 1 / E4M3_DEVIATION
    width = spec.shape[-1] * 32
    return 1 / sqrt(width) / (E2M1_DEVIATION if spec.subsystem is Subsystem.ROUTED else E4M3_DEVIATION)


def _deviation(spec: TensorSpec) -> float:
    """Of an unquantised matrix."""
    if spec.subsystem is Subsystem.EMBED or spec.name.endswith("markov_head.embed.weight"):
        return 1.0
    return (HEAD_GAIN if spec.subsystem is Subsystem.HEAD else 1.0) / sqrt(spec.shape[-1])


def _small(spec: TensorSpec, stored: Callable[[str], torch.Tensor]) -> list[NDArray[np.uint8]] | None:
    """An unquantised tensor that is made whole; None for one that is drawn."""
    is_small = spec.dtype is StoredDtype.BF16 and prod(spec.shape) * 4 <= CHUNK_BYTES
    if not is_small and spec.dtype is not StoredDtype.F32:
        return None
    return [stored(spec.name).contiguous().view(torch.uint8).numpy().reshape(-1)]


def _sidecars(config: ModelConfig, placement: Placement) -> dict[str, bytes]:
    files = {CONFIG_FILE: encode_config(config)}
    return files | ({INDEX_FILE: encode_index(placement)} if len(placement) > 1 else {})


def _check_room(directory: Path, total_bytes: int) -> None:
    # The nearest folder that exists is on the file system that will be written.
    folder = next(path for path in (directory.absolute(), *directory.absolute().parents) if path.is_dir())
    free = shutil.disk_usage(folder).free
    needed = total_bytes + RESERVED_BYTES
    if free < needed:
        raise CapacityError(complaint(f"free bytes at {folder}", free, f"at least {needed} for this checkpoint"))
