"""Attention of whole sequences to every row they may see, with its gradient, in a few large products.

While a selection holds every visible row (the first phases), lists of rows name the same rows for all queries of a
sequence: one product over all of them replaces a gather for each.  Same numbers as `sparse`, summed in another order.

    keys of a sequence = its window rows, then its plane           hidden [L, m]: what query p may not see
"""

from typing import Any

import torch
from torch import Tensor

from training.model.sparse import EMPTY_MAXIMUM


class _DenseAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, keys: Tensor, bias: Tensor, sink: Tensor, scale: float, coarse: bool
    ) -> tuple[Tensor, Tensor]:
        num_sequences, length, num_heads, width = q.shape
        flat = q.reshape(num_sequences, length * num_heads, width)
        logits = torch.baddbmm(bias.repeat_interleave(num_heads, 1), flat, keys.mT, alpha=scale)
        maximum = logits.amax(-1, keepdim=True).clamp_(min=EMPTY_MAXIMUM)
        weights = logits.sub_(maximum).exp_()
        total = weights.sum(-1, keepdim=True) + (sink.repeat(length).view(1, -1, 1) - maximum).exp()
        met = weights.to(torch.bfloat16).float() if coarse else weights
        outputs = torch.bmm(met, keys).div_(total)
        masses = weights.div_(total) if met is not weights else weights / total
        ctx.save_for_backward(flat, keys, masses, outputs)
        ctx.scale = scale
        ctx.mark_non_differentiable(masses)
        return outputs.view_as(q), masses

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        flat, keys, masses, outputs = ctx.saved_tensors
        num_sequences, length, num_heads, width = gradient.shape
        above = gradient.reshape(num_sequences, length * num_heads, width)
        inner = (above * outputs).sum(-1, keepdim=True)
        to_sink = -((1.0 - masses.sum(-1)) * inner.squeeze(-1)).view(-1, num_heads).sum(0)
        to_logits = torch.bmm(above, keys.mT).sub_(inner).mul_(masses).mul_(ctx.scale)
        to_q = torch.bmm(to_logits, keys).view_as(gradient)
        to_keys = torch.bmm(masses.mT, above).baddbmm_(to_logits.mT, flat)
        return to_q, to_keys, None, to_sink, None, None


def dense_attention(
    q: Tensor, keys: Tensor, bias: Tensor, sink: Tensor, scale: float, coarse: bool = False
) -> tuple[Tensor, Tensor]:
    """Outputs [R, L, H, d] of q and keys [R, m, d], and, without gradient, masses [R, L * H, m].

    `bias` [R or 1, L, m] is 0 where a query sees a row and -inf where not; `coarse` as in `sparse_attention`.
    """
    outputs, masses = _DenseAttention.apply(q, keys, bias, sink, scale, coarse)  # type: ignore[no-untyped-call]
    return outputs, masses


def visible_bias(length: int, window: int, ratio: int) -> Tensor:
    """[L, L + L // ratio]: window rows p - W + 1 .. p, and compressed rows below (p + 1) // ratio; ratio 0 has none."""
    positions = torch.arange(length)
    back = positions.unsqueeze(1) - positions
    seen = (back >= 0) & (back < window)
    if ratio > 0:
        rows = torch.arange(length // ratio)
        seen = torch.cat((seen, rows < ((positions + 1) // ratio).unsqueeze(1)), 1)
    return torch.zeros(seen.shape).masked_fill_(~seen, -torch.inf)
