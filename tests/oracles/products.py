"""Scaled products in numpy, from the definitions: decoding by table, rounding by distance, one K block at a time.

Shares nothing with the package's arithmetic; reads only the bytes and the format names of a `Quantized`.
"""

import numpy as np
import torch

from flash41.numerics.scaled import ElementFormat, Quantized
from oracles.number_formats import E2M1_MAGNITUDES, E4M3_MAGNITUDES

E4M3 = np.array([float(value) for value in E4M3_MAGNITUDES])
E2M1 = np.array([float(value) for value in E2M1_MAGNITUDES])
GROUP = 32


def bf16(x: np.ndarray) -> np.ndarray:
    """FP64 [..] rounded to FP32 and then to BF16, nearest even, as FP64."""
    bits = x.astype(np.float32).view(np.uint32).astype(np.uint64)
    kept = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    return kept.astype(np.uint32).view(np.float32).astype(np.float64)


def numbers(x: torch.Tensor) -> np.ndarray:
    return x.double().numpy()


def nearest(x: np.ndarray, magnitudes: np.ndarray) -> np.ndarray:
    """The nearest of the magnitudes with x's sign; of two equally near ones that with the even code."""
    distances = np.abs(magnitudes - np.abs(x)[..., None])
    code = distances.argmin(-1)
    above = np.minimum(code + 1, len(magnitudes) - 1)
    tie = np.take_along_axis(distances, above[..., None], -1)[..., 0] == distances.min(-1)
    code = np.where(tie & (code % 2 == 1), above, code)
    return np.copysign(magnitudes[code], x)


def fp8_32(x: np.ndarray) -> np.ndarray:
    """What the input of a scaled linear reads after its FP8/32 round trip."""
    groups = x.reshape(*x.shape[:-1], -1, GROUP)
    largest = np.maximum(np.abs(groups).max(-1, keepdims=True), float(np.float32(1e-4)))
    scale = 2.0 ** np.ceil(np.log2(largest / 448.0))
    scale = np.where(scale / 2 >= largest / 448.0, scale / 2, scale)
    return (nearest(groups / scale, E4M3) * scale).reshape(x.shape)


def weight(q: Quantized) -> np.ndarray:
    """Values [N, K] of a weight with E8M0 scales."""
    codes = q.codes.numpy()
    if q.element is ElementFormat.E2M1:
        codes = np.stack((codes & 15, codes >> 4), -1).reshape(codes.shape[0], -1)
        magnitude, negative = E2M1[codes & 7], codes >> 3
    else:
        magnitude, negative = E4M3[codes & 127], codes >> 7
    rows, channels = q.group
    scales = np.ldexp(1.0, q.scales.numpy().astype(int) - 127)
    scales = scales.repeat(rows, 0)[: codes.shape[0]].repeat(channels, 1)
    return np.where(negative, -magnitude, magnitude) * scales


def contract(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """FP32 result of the product contract, x [T, K], w [N, K]: exact per K block, blocks added in FP32 in K order."""
    total = np.zeros((x.shape[0], w.shape[0]), dtype=np.float32)
    for first in range(0, x.shape[1], GROUP):
        block = slice(first, first + GROUP)
        total = total + (x[:, block] @ w[:, block].T).astype(np.float32)
    return total.astype(np.float64)


def contract_error(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Bound of |FP32 result - exact sum| of any backend.

    Each block takes part in at most K/32 additions.  Before, its terms meet in at most 8 additions (a compiled backend
    has 4 lanes or more), and lanes, of which there are at most 16, meet in at most 4 afterwards; tiles add the 16 even
    and the 16 odd channels of a block, then both: 16 additions.
    """
    return (x.shape[1] // GROUP + 16) * 2.0**-24 * (np.abs(x) @ np.abs(w).T)
