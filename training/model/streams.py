"""Reading and writing the residual streams, with their gradients: a few passes over [T, D] instead of T tiny products.

    u    = sum_j pre_j x_j
    x'_k = post_k y + sum_j C[j,k] x_j

spec: mhc.md section 4.
"""

from typing import Any

import torch
from torch import Tensor


class _Collapse(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, pre: Tensor) -> Tensor:
        ctx.save_for_backward(x, pre)
        return _weighed(x, pre)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        x, pre = ctx.saved_tensors
        return pre.unsqueeze(2) * gradient.unsqueeze(1), (x * gradient.unsqueeze(1)).sum(2)


class _Apply(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, post: Tensor, comb: Tensor) -> Tensor:
        ctx.save_for_backward(x, y, post, comb)
        mixed = post.unsqueeze(2) * y.unsqueeze(1)
        for source in range(x.shape[1]):
            mixed.addcmul_(comb[:, source].unsqueeze(2), x[:, source].unsqueeze(1))
        return mixed

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, ...]:
        x, y, post, comb = ctx.saved_tensors
        to_x, to_comb = torch.empty_like(x), torch.empty_like(comb)
        for source in range(x.shape[1]):
            to_x[:, source] = _weighed(gradient, comb[:, source])
            to_comb[:, source] = (gradient * x[:, source].unsqueeze(1)).sum(2)
        return to_x, _weighed(gradient, post), (gradient * y.unsqueeze(1)).sum(2), to_comb


def collapse(x: Tensor, pre: Tensor) -> Tensor:
    """[T, D] from streams x [T, S, D] and pre [T, S]."""
    result: Tensor = _Collapse.apply(x, pre)  # type: ignore[no-untyped-call]
    return result


def apply(x: Tensor, y: Tensor, post: Tensor, comb: Tensor) -> Tensor:
    """New streams [T, S, D] from x [T, S, D], y [T, D], post [T, S] and comb [T, source, destination]."""
    result: Tensor = _Apply.apply(x, y, post, comb)  # type: ignore[no-untyped-call]
    return result


def _weighed(x: Tensor, weights: Tensor) -> Tensor:
    total = x[:, 0] * weights[:, :1]
    for stream in range(1, x.shape[1]):
        total.addcmul_(x[:, stream], weights[:, stream : stream + 1])
    return total
