"""The randomness of sampling: Gumbel noise keyed by seed, position and token.

    token = argmax over kept tokens of  logits / T + g,      g = -ln(-ln u),   u in (0, 1) from (seed, position, token)

which draws from the softmax.  Because the noise of a token at a position depends on the seed alone, a seeded text is
the same in any batch, with any chunking, and with drafts on or off.  The generator is a counter hash in integers (the
SplitMix64 finaliser, twice), so it does not depend on the version of any library.
"""

import numpy as np
from numpy.typing import NDArray

_GOLDEN = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1
OTHER_SEEDS = 1 << 63
"""Behind the seeds of requests."""


def _mix(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def uniforms(seed: int, position: int, count: int) -> NDArray[np.float64]:
    """FP64 [count] in (0, 1): 52 random bits and a half, one number per token id."""
    with np.errstate(over="ignore"):
        key = _mix(np.array([(seed * _GOLDEN + _GOLDEN) & _MASK], dtype=np.uint64))
        key = _mix(key + np.uint64((position * _GOLDEN + 1) & _MASK))
        words = _mix(key + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(_GOLDEN))
    return ((words >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52


def acceptance_uniforms(seed: int, position: int) -> tuple[float, float]:
    """Two numbers in (0, 1) for the draft at a position, one accepts and one draws in its place.

    Their key is no seed a request can have, so they are independent of the noise that drew the draft.
    """
    accepts, draws = uniforms(seed + OTHER_SEEDS, position, 2).tolist()
    return accepts, draws


def gumbel(seed: int, position: int, count: int) -> NDArray[np.float64]:
    """FP64 [count] standard Gumbel noise."""
    return -np.log(-np.log(uniforms(seed, position, count)))
