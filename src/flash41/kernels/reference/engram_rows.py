"""Rows of an n-gram table, looked up and dequantised.

    value(r, i) = bf16( e4m3(codes[r, i]) * 2^(scales[r, i div 32] - 127) )

Four significant bits times a power of two: BF16 holds every value, down to its subnormals.  A NaN code is a NaN
channel, a NaN scale a NaN group.  spec: engram.md section 3.
"""

import torch
from torch import Tensor

from flash41.numerics.formats import NAN_E8M0
from flash41.numerics.scaled import ElementFormat, Quantized, ScaleFormat

GROUP = (1, 32)


def engram_rows(codes: Tensor, scales: Tensor, row_ids: Tensor, dtype: torch.dtype) -> tuple[Tensor, bool]:
    """Values [n, K] of rows [n] of codes [R, K] and scales [R, K/32], and whether a scale of theirs is NaN.

    Each row is read once however often it occurs.
    """
    distinct, place = torch.unique(row_ids, return_inverse=True)
    rows = Quantized(
        codes=codes.index_select(0, distinct),
        scales=scales.index_select(0, distinct),
        element=ElementFormat.E4M3,
        scale=ScaleFormat.E8M0,
        group=GROUP,
    )
    values = rows.dequantize(torch.bfloat16).to(dtype).index_select(0, place)
    return values, bool((rows.scales == NAN_E8M0).any())
