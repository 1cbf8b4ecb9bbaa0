"""Linear maps, one per way a weight is stored.

    y[t, n] = sum_k x[t, k] * W[n, k]

spec: number-formats.md sections 6 (GEMM contract) and 8 (what runs unquantised).
"""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from flash41.kernels.reference.arithmetic import stored
from flash41.kernels.reference.decoded import GROUP, DecodedWeights
from flash41.numerics.scaled import Quantized, round_fp8_32


def scaled_linear(x: Tensor, weight: Quantized, decoded: DecodedWeights) -> Tensor:
    """FP8 x FP8 or FP8 x FP4 product: x [..., K] BF16, weight [N, K] -> [..., N] in x's dtype.

    The input is quantised per 32 channels.  Each 32-wide K block is summed exactly, scaled, rounded to FP32, and the
    blocks are added in FP32 in K order.
    """
    return block_product(round_fp8_32(x), decoded.blocks(weight)).to(x.dtype)


def scaled_linears(x: Tensor, weights: Sequence[Quantized], decoded: DecodedWeights) -> list[Tensor]:
    """`scaled_linear` of one input with several weights: the input is quantised once."""
    product = block_product(round_fp8_32(x), decoded.blocks(*weights)).to(x.dtype)
    return list(product.split_with_sizes([weight.shape[0] for weight in weights], -1))


def block_product(rounded: Tensor, bands: Iterable[Tensor]) -> Tensor:
    """FP32 [..., N] of an FP64 input on the FP8/32 grid [..., K] and bands of decoded weights [K / 32, 32, n].

    Power-of-two scales are folded into both operands, which is exact; so is the FP64 sum of 32 products.
    """
    lead, width = rounded.shape[:-1], rounded.shape[-1]
    left = rounded.view(-1, width // GROUP, GROUP).transpose(0, 1)
    # The sums of a block are exact and rounded to FP32 before they meet those of the next.
    outputs = [added_blocks(torch.bmm(left, band).float().unbind()) for band in bands]
    result = outputs[0] if len(outputs) == 1 else torch.cat(outputs, -1)
    return result.view(*lead, -1)


def added_blocks(sums: Sequence[Tensor]) -> Tensor:
    """FP32 sums of the K blocks, added in FP32 from the first block to the last."""
    total = sums[0]
    for block in sums[1:]:
        total = total + block
    return total


def dequantized_linear(x: Tensor, weight: Quantized, decoded: DecodedWeights) -> Tensor:
    """Product with the exact dequantised weight and an input as it is: profile `fp32`; output in x's dtype."""
    return _joined(x.double(), decoded.matrix(weight), x.dtype)


def linear(x: Tensor, weight: Tensor, out_dtype: torch.dtype, decoded: DecodedWeights) -> Tensor:
    """BF16 or FP32 weight [N, K]: FP64 accumulation, rounded once to FP32 and then to `out_dtype`."""
    return _joined(x.double(), decoded.plain(weight), out_dtype)


def _joined(x: Tensor, bands: Iterable[Tensor], dtype: torch.dtype) -> Tensor:
    outputs = [stored(torch.matmul(x, band), dtype) for band in bands]
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs, -1)


def grouped_linear(x: Tensor, weights: Sequence[Quantized], decoded: DecodedWeights) -> Tensor:
    """Block-diagonal product: x [T, groups, K] and a weight [N, K] per group -> [T, groups, N] in x's dtype."""
    left = x.double().transpose(0, 1)
    return _joined(left, decoded.groups(*weights), x.dtype).transpose(0, 1)
