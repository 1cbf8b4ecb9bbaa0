"""Rows for pools: random ones as a model would hand them over, and the bytes that a pool must hold afterwards."""

from collections.abc import Callable

import torch
from torch import Tensor

from flash41.cache.views import Rows
from flash41.numerics.scaled import Quantized, quantize_fp4_16, quantize_fp4_32, quantize_fp8_32, quantize_fp8_row
from flash41.numerics.stored_rows import RowFormat
from helpers.tensors import normal

QUANTIZERS: dict[RowFormat, Callable[[Tensor], Quantized]] = {
    RowFormat.FP4_16: quantize_fp4_16,
    RowFormat.FP4_32: quantize_fp4_32,
    RowFormat.FP8_32: quantize_fp8_32,
    RowFormat.FP8_ROW: quantize_fp8_row,
}


def random_rows(row_format: RowFormat, count: int, channels: int, seed: int = 0) -> Rows:
    """Rows [count, channels], each with a scale of its own, in the form a buffer of the format takes."""
    spread = 2.0 ** (torch.arange(count) % 7 - 3).unsqueeze(1)
    values = normal(count, channels, seed=seed, dtype=torch.float32) * spread
    if row_format in QUANTIZERS:
        return QUANTIZERS[row_format](values.bfloat16())
    return values if row_format is RowFormat.FP32 else values.bfloat16()


def row_values(rows: Rows) -> Tensor:
    """What reading the rows must give."""
    return rows if isinstance(rows, Tensor) else rows.dequantize(torch.bfloat16)


def row_codes(rows: Rows) -> Tensor:
    """Value bytes, uint8 [count, bytes]."""
    return (rows if isinstance(rows, Tensor) else rows.codes).contiguous().view(torch.uint8)


def row_scales(rows: Rows) -> Tensor:
    """Scale bytes, uint8 [count, bytes]; none of plain rows."""
    if isinstance(rows, Tensor):
        return torch.zeros(len(rows), 0, dtype=torch.uint8)
    scales: Tensor = rows.scales.contiguous().view(torch.uint8)
    return scales
