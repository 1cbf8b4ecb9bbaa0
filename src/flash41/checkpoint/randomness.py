"""Pseudo-random numbers that are the same bytes everywhere.

A counter-based integer generator (SplitMix64, started from a hash of seed and stream) and nothing but exact float
arithmetic behind it, so that a checkpoint made from a seed does not depend on the version of torch, numpy or the CPU.

    normal(i) = (sum of four 16-bit uniforms - mean) / standard deviation

whose every step is an integer operation but one division of small integers, exact to the last bit in FP64.
"""

import hashlib

import numpy as np
from numpy.typing import NDArray

GOLDEN_RATIO = np.uint64(0x9E3779B97F4A7C15)
FIRST_MULTIPLIER = np.uint64(0xBF58476D1CE4E5B9)
SECOND_MULTIPLIER = np.uint64(0x94D049BB133111EB)

NORMAL_MEAN = 4 * 65535 / 2
NORMAL_DEVIATION = 37837.5
"""Standard deviation of the sum of four uniforms on 0..65535, 65536 / sqrt(3), to within 1e-5 of itself."""


def words(seed: int, stream: str, count: int) -> NDArray[np.uint64]:
    """`count` 64-bit words of the named stream."""
    digest = hashlib.blake2b(f"{seed}/{stream}".encode(), digest_size=8).digest()
    return splitmix(int.from_bytes(digest, "little"), count)


def splitmix(state: int, count: int) -> NDArray[np.uint64]:
    """The first `count` outputs of SplitMix64 from a 64-bit state."""
    with np.errstate(over="ignore"):
        z = np.uint64(state) + np.arange(1, count + 1, dtype=np.uint64) * GOLDEN_RATIO
        z = (z ^ (z >> np.uint64(30))) * FIRST_MULTIPLIER
        z = (z ^ (z >> np.uint64(27))) * SECOND_MULTIPLIER
    return z ^ (z >> np.uint64(31))


def normal(seed: int, stream: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """FP32 values with mean 0 and deviation 1 (a sum of four uniforms: bell-shaped, never beyond 3.5)."""
    raw = words(seed, stream, int(np.prod(shape, dtype=np.int64)))
    parts = [((raw >> np.uint64(shift)) & np.uint64(0xFFFF)).astype(np.float64) for shift in (0, 16, 32, 48)]
    total: NDArray[np.float64] = parts[0] + parts[1] + parts[2] + parts[3]
    return ((total - NORMAL_MEAN) / NORMAL_DEVIATION).astype(np.float32).reshape(shape)
