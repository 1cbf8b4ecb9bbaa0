"""Rounding that gradients pass: the forward sees exactly the number the checkpoint or the cache will hold.

    y = round(x),   dL/dx := dL/dy

Nothing saturates in a way worth a gradient of its own: every scale follows the largest magnitude of its group, and
where an E4M3 scale is rounded down the clamped channel is off by at most one sixteenth.  So the derivative is one
everywhere, clamped channels included.

FP32 throughout, where `flash41.numerics` takes the way over codes or FP64; both give the same numbers for FP32 inputs.
spec: number-formats.md sections 2 to 5 and 7.
"""

from typing import Any

import torch
from torch import Tensor

from flash41.checkpoint.quantize import FLOOR, TILE
from flash41.numerics.rounding import nearest_e4m3, power_of_two_scale
from flash41.numerics.scaled import FP8_FLOOR, INVERSE_448, fake_fp4_16, fake_fp4_32

GROUP = 32
_EXPONENT = 0x7F800000
_STEP_SHIFT = (20 << 23) | 0x00400000
"""Turns the FP32 pattern of 2^e into that of 1.5 * 2^(e+20): adding it leaves a multiple of 2^(e-3)."""
_FINEST = 1.5 * 2.0**14
"""Times a scale s: 1.5 * 2^23 steps of 2^-9 s, the finest E4M3 has."""


class _Straight(torch.autograd.Function):
    """The second argument forward, the gradient to the first one backward."""

    @staticmethod
    def forward(_: Any, x: Tensor, rounded: Tensor) -> Tensor:
        return rounded.view_as(x)

    @staticmethod
    def backward(_: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


def straight(x: Tensor, rounded: Tensor) -> Tensor:
    """`rounded`, whose gradient goes to x unchanged."""
    result: Tensor = _Straight.apply(x, rounded)  # type: ignore[no-untyped-call]
    return result


def fp8_32(x: Tensor) -> Tensor:
    """FP32 [..., K] after storage in FP8 with a power-of-two scale per 32 channels."""
    return straight(x, _round_fp8_32(x.detach()))


def fp4_32(x: Tensor) -> Tensor:
    """FP32 [..., K] after storage in FP4 with a power-of-two scale per 32 channels."""
    return straight(x, fake_fp4_32(x.detach()))


def fp4_16(x: Tensor) -> Tensor:
    """FP32 [..., K] after storage in FP4 with an E4M3 scale per 16 channels."""
    return straight(x, fake_fp4_16(x.detach()))


def dense_fp8(weight: Tensor) -> Tensor:
    """FP32 [..., N, K] as `quantize_dense` will store each matrix: E4M3 with a power-of-two scale per 32 x 32 tile."""
    *lead, num_rows, width = weight.shape
    tiles = weight.detach().reshape(*lead, num_rows // TILE, TILE, width // TILE, TILE)
    scale = power_of_two_scale(tiles.abs().amax((-3, -1), keepdim=True).clamp_(min=FLOOR) / 448.0)
    return straight(weight, nearest_e4m3(tiles / scale).mul_(scale).view_as(weight))


def bf16(x: Tensor) -> Tensor:
    """FP32 values of x stored as BF16."""
    return straight(x, x.detach().to(torch.bfloat16).float())


def _round_fp8_32(x: Tensor) -> Tensor:
    groups = x.reshape(-1, GROUP)
    largest = groups.abs().amax(-1, keepdim=True).clamp_(min=FP8_FLOOR)
    finest = power_of_two_scale(largest * INVERSE_448).mul_(_FINEST)
    own = groups.view(torch.int32).bitwise_and(_EXPONENT).add_(_STEP_SHIFT).view(torch.float32)
    summand = torch.maximum(own, finest, out=own)
    return (groups + summand).sub_(summand).view_as(x)
