"""Sinkhorn with its rounds unrolled, and the Engram gate's root with a bounded slope.

The mixing matrix is differentiated through every one of its normalisations, in FP32: an implicit gradient would be that
of the converged matrix, and the model's is a truncation.  Tokens lie in the last dim, so that each of the few sums is
one pass over contiguous memory.  spec: mhc.md section 3, engram.md section 4.
"""

from typing import Any

import torch
from torch import Tensor

from flash41.kernels.reference.engram import DOT_FLOOR

SLOPE_FLOOR = 1e-2
"""|dot| below which the root's slope stays that of this value: 5 instead of up to 500."""


def sinkhorn(logits: Tensor, iterations: int, eps: float) -> Tensor:
    """FP32 [T, S, S] logits -> mixing matrix [T, source, destination]."""
    comb = logits.permute(1, 2, 0).softmax(1) + eps
    comb = comb / (comb.sum(0, keepdim=True) + eps)
    for _ in range(iterations - 1):
        comb = comb / (comb.sum(1, keepdim=True) + eps)
        comb = comb / (comb.sum(0, keepdim=True) + eps)
    return comb.permute(2, 0, 1)


class _SignedRoot(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, dot: Tensor) -> Tensor:
        ctx.save_for_backward(dot)
        return torch.copysign(dot.abs().clamp(min=DOT_FLOOR).sqrt(), dot)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (dot,) = ctx.saved_tensors
        slope: Tensor = 0.5 * dot.abs().clamp(min=SLOPE_FLOOR).rsqrt()
        return gradient * slope


def signed_root(dot: Tensor) -> Tensor:
    """copysign(sqrt(max(|dot|, 1e-6)), dot); the slope is bounded by 5 and is not cut below the floor."""
    result: Tensor = _SignedRoot.apply(dot)  # type: ignore[no-untyped-call]
    return result
