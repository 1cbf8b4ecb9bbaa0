"""Linear maps, one per way a weight is stored.

    y[t, n] = sum_k x[t, k] * W[n, k]

spec: number-formats.md sections 6 (GEMM contract) and 8 (what runs unquantised).
"""

import torch
from torch import Tensor

from flash41.kernels.reference.arithmetic import matmul
from flash41.numerics.scaled import Quantized, quantize_fp8_32

GROUP = 32
"""Channels of K that share an activation scale and a weight scale."""

ROWS_PER_BAND = 1 << 22
"""Weight elements decoded to FP64 at a time; bounds scratch memory, never changes a result."""


def scaled_linear(x: Tensor, weight: Quantized) -> Tensor:
    """FP8 x FP8 or FP8 x FP4 product: x [..., K] BF16, weight [N, K] -> [..., N] in x's dtype.

    The input is quantised per 32 channels.  Each 32-wide K block is summed exactly, scaled, rounded to FP32, and the
    blocks are added in FP32 in K order.
    """
    return scaled_product(quantize_fp8_32(x), weight).to(x.dtype)


def scaled_product(x: Quantized, weight: Quantized) -> Tensor:
    """`scaled_linear` for an input that is quantised already: FP32 [..., N]."""
    values = x.dequantize(torch.float64)
    flat = values.reshape(-1, values.shape[-1])
    # One matrix per K block: [blocks, rows, 32].  Power-of-two scales are folded into the operands, which is exact.
    left = flat.view(flat.shape[0], -1, GROUP).transpose(0, 1)
    outputs = [_block_sums(left, part) for part in _bands(weight)]
    result = outputs[0] if len(outputs) == 1 else torch.cat(outputs, -1)
    return result.view(*values.shape[:-1], -1)


def _bands(weight: Quantized) -> list[Quantized]:
    """The weight in runs of whole output rows, each small enough to decode at once."""
    num_rows, width = weight.shape
    step = max(GROUP, ROWS_PER_BAND // width // GROUP * GROUP)
    if step >= num_rows:
        return [weight]
    return [weight.slice_rows(first, min(first + step, num_rows)) for first in range(0, num_rows, step)]


def _block_sums(left: Tensor, weight: Quantized) -> Tensor:
    """FP32 [rows, N]: exact sums per K block, rounded, then added in FP32 from the first block to the last."""
    num_rows, width = weight.shape
    right = weight.dequantize(torch.float64).view(num_rows, width // GROUP, GROUP).permute(1, 2, 0)
    sums = torch.bmm(left, right).float()  # [blocks, rows, N]
    total = sums[0]
    for block in sums[1:]:
        total = total + block
    return total


def dequantized_linear(x: Tensor, weight: Quantized) -> Tensor:
    """Product with the exact dequantised weight and an input as it is: profile `fp32`; output in x's dtype."""
    outputs = [matmul(x, part.dequantize(torch.float64).t()).to(x.dtype) for part in _bands(weight)]
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs, -1)


def linear(x: Tensor, weight: Tensor, out_dtype: torch.dtype) -> Tensor:
    """BF16 or FP32 weight [N, K]: FP64 accumulation, rounded once to FP32 and then to `out_dtype`."""
    step = max(1, ROWS_PER_BAND // weight.shape[1])
    outputs = [matmul(x, part.t()).float().to(out_dtype) for part in weight.split(step)]
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs, -1)


def grouped_linear(x: Tensor, weight: Tensor) -> Tensor:
    """Block-diagonal product: x [T, groups, K], weight [groups, N, K] -> [T, groups, N] in x's dtype."""
    return matmul(x.transpose(0, 1), weight.transpose(1, 2)).float().transpose(0, 1).to(x.dtype)
