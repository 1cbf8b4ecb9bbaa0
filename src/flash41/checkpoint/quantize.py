"""Weights into their stored formats: what a converter does, for tools that make checkpoints.

    dense     E4M3, one E8M0 scale per 32 x 32 tile:    s = smallest power of two >= max|tile| / 448
    experts   E2M1, one E8M0 scale per 1 x 32 run:      s = smallest power of two >= max|run| / 6

The checkpoint fixes the formats, not the rule for the scale; this one loses no range (nothing saturates).
spec: number-formats.md section 7.
"""

import torch
from torch import Tensor

from flash41.errors import KernelError, complaint
from flash41.numerics.formats import decode_e8m0
from flash41.numerics.rounding import encode_e4m3, power_of_two_at_least
from flash41.numerics.scaled import ElementFormat, Quantized, ScaleFormat, quantize_fp4_32, quantize_fp8_32

TILE = 32
FLOOR = 2.0**-100
"""Smallest maximum that sets a scale, so that an all-zero tile has a finite one."""


def quantize_dense(weight: Tensor) -> Quantized:
    """FP32 [N, K] in 32 x 32 tiles; raises KernelError when a side is no multiple of 32."""
    num_rows, width = weight.shape
    if num_rows % TILE or width % TILE:
        raise KernelError(complaint("dense weight shape", tuple(weight.shape), f"multiples of {TILE}"))
    tiles = weight.float().view(num_rows // TILE, TILE, width // TILE, TILE)
    largest = tiles.abs().amax((1, 3)).clamp(min=FLOOR)
    scales = power_of_two_at_least(largest / 448.0)
    codes = encode_e4m3(tiles / decode_e8m0(scales)[:, None, :, None])
    return Quantized(
        codes=codes.view(num_rows, width),
        scales=scales,
        element=ElementFormat.E4M3,
        scale=ScaleFormat.E8M0,
        group=(TILE, TILE),
    )


def quantize_expert(weight: Tensor) -> Quantized:
    """FP32 [N, K] as packed FP4 with a scale per 32 channels of a row."""
    return quantize_fp4_32(weight)


def quantize_table(rows: Tensor) -> Quantized:
    """FP32 Engram rows [R, d] as E4M3 with a scale per 32 channels of a row."""
    return quantize_fp8_32(rows.to(torch.float32))
