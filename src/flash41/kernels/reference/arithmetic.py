"""The rule that makes every row independent of its neighbours: reduce in FP64, round once.

torch's matrix products pick their kernels, and with them the order of additions, by shape.  A row would change its
last bits with the number of rows beside it, and with them a near-tie in a router or a selection.  So every reduction
and every transcendental function of this backend is evaluated in FP64 and rounded once:

- products of BF16, FP8 or FP4 operands have at most 16 significant bits, so FP64 sums of them are exact (37 spare bits)
  unless the terms spread over more than about 29 binades, and then they are wrong by 2^-53 of the largest term;
- what is not exact is rounded to FP32 from a value whose error is 2^-29 of the rounding step.

Knows nothing of formats or of the model.
"""

import torch
from torch import Tensor


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """FP64 product of the last two dims, [..., m, k] x [..., k, n]."""
    return torch.matmul(a.double(), b.double())


def inverse_rms(x: Tensor, eps: float) -> Tensor:
    """FP64 (mean(x^2) + eps)^(-1/2) over the last dim, kept as a dim of one."""
    wide = x.double()
    return (wide * wide).sum(-1, keepdim=True).div_(x.shape[-1]).add_(eps).rsqrt_()


def stored(x: Tensor, dtype: torch.dtype) -> Tensor:
    """FP64 rounded to FP32 and then to `dtype`: torch takes the step over FP32 itself on the way to BF16."""
    return x.to(dtype)
