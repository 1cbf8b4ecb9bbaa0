"""Attention over lists of rows, with its gradient: nothing of size [queries, rows, channels] outlives a band.

    a_k = (q_h . k) scale,   p_k = e^(a_k - m) / (sum_k e^(a_k - m) + e^(sink_h - m)),   o_h = sum_k p_k k

K and V are the same row, so a row gets the gradients of both.  With D = dL/do and c = D . o:

    dL/da_k = p_k (D . k - c)        dL/dsink = - p_sink c        dL/dk += p_k D + dL/da_k scale q

Rows that are on no list get none: the gradient goes through a selection into the selected rows only.
spec: attention.md section 7.
"""

from typing import Any

import torch
from torch import Tensor

GATHERED_PER_BAND = 1 << 20
"""Channels gathered at a time: small enough for a core's cache."""
EMPTY_MAXIMUM = -1e30


class _SparseAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        rows: Tensor,
        index: Tensor,
        counts: Tensor,
        sink: Tensor,
        scale: float,
        coarse: bool,
        blocked: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        outputs, masses = torch.empty_like(q), q.new_empty(*q.shape[:2], index.shape[1])
        for band in _bands(q, index):
            keys = _gathered(rows, index[band])
            hidden = torch.arange(index.shape[1]) >= counts[band].unsqueeze(1)
            if blocked is not None:
                hidden |= blocked[index[band]]
            logits = torch.bmm(q[band], keys.mT).mul_(scale).masked_fill_(hidden.unsqueeze(1), -torch.inf)
            maximum = logits.amax(-1, keepdim=True).clamp_(min=EMPTY_MAXIMUM)
            weights = logits.sub_(maximum).exp_()
            total = weights.sum(-1, keepdim=True) + (sink.view(1, -1, 1) - maximum).exp()
            masses[band] = weights / total
            met = weights.to(torch.bfloat16).float() if coarse else weights
            outputs[band] = torch.bmm(met, keys).div_(total)
        ctx.save_for_backward(q, rows, index, masses, outputs)
        ctx.scale = scale
        ctx.mark_non_differentiable(masses)
        return outputs, masses

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        q, rows, index, masses, outputs = ctx.saved_tensors
        to_q, to_rows = torch.empty_like(q), torch.zeros_like(rows)
        inner = (gradient * outputs).sum(-1, keepdim=True)
        to_sink = -((1.0 - masses.sum(-1)) * inner.squeeze(-1)).sum(0)
        for band in _bands(q, index):
            keys, weights, above = _gathered(rows, index[band]), masses[band], gradient[band]
            to_logits = torch.bmm(above, keys.mT).sub_(inner[band]).mul_(weights).mul_(ctx.scale)
            to_q[band] = torch.bmm(to_logits, keys)
            to_keys = torch.bmm(torch.cat((weights, to_logits), 1).mT, torch.cat((above, q[band]), 1))
            to_rows.index_add_(0, index[band].flatten(), to_keys.flatten(0, 1))
        return to_q, to_rows, None, None, to_sink, None, None, None


def sparse_attention(
    q: Tensor,
    rows: Tensor,
    index: Tensor,
    counts: Tensor,
    sink: Tensor,
    scale: float,
    coarse: bool = False,
    blocked: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Outputs [T, H, d] and, without gradient, the mass [T, H, n] each listed row got; shapes as in the kernels.

    `coarse` rounds the weights to BF16 before they meet the rows, as the engine does.  Rows where `blocked` bool [rows]
    holds are on lists without being seen.
    """
    outputs, masses = _SparseAttention.apply(q, rows, index.clamp(min=0), counts, sink, scale, coarse, blocked)  # type: ignore[no-untyped-call]
    return outputs, masses


def _bands(q: Tensor, index: Tensor) -> list[slice]:
    step = max(1, GATHERED_PER_BAND // max(1, index.shape[1] * q.shape[2]))
    return [slice(first, first + step) for first in range(0, len(q), step)]


def _gathered(rows: Tensor, index: Tensor) -> Tensor:
    return rows.index_select(0, index.reshape(-1)).view(*index.shape, rows.shape[1])
