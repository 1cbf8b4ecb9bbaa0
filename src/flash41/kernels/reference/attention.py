"""Sparse attention of one token over its list of rows.

K and V are the same row, one KV head serves all query heads, and the list of a query is: its window rows ascending by
position, then its selected compressed rows ascending.  For head h:

    a_k = (q_h . k) * head_dim^(-1/2)
    o_h = sum_k e^(a_k - m) k / (sum_k e^(a_k - m) + e^(sink_h - m)),      m = max_k a_k

The sink is a raw logit: not scaled, in the denominator only, not part of the maximum.  An empty list gives 0.

The list is cut in blocks of 64 keys and folded with an online softmax: FP32 logits, FP32 denominator, probabilities
rounded to the dtype of q before they meet V.  spec: attention.md section 7.
"""

import torch
from torch import Tensor

from flash41.numerics.stored_rows import AttendedRows, RowStack

KEYS_PER_BLOCK = 64
EMPTY_MAXIMUM = -1e30
SCRATCH_ELEMENTS = 1 << 24
"""Gathered key elements per band of queries; bounds scratch memory, never changes a result."""


def sparse_attention(
    q: Tensor, rows: AttendedRows, index: Tensor, counts: Tensor, sink: Tensor, scale: float
) -> Tensor:
    """Attention outputs [T, H, d] in q's dtype.

    q [T, H, d]; rows [R, d] are all rows of the forward; index int64 [T, n] names the rows of each query, of which the
    first counts[t] are real; sink FP32 [H].
    """
    if isinstance(rows, RowStack):
        rows, index = rows.gathered(index, counts)
    step = max(1, SCRATCH_ELEMENTS // max(1, index.shape[1] * q.shape[2]))
    outputs = [
        _attend(q[first : first + step], rows, index[first : first + step], counts[first : first + step], sink, scale)
        for first in range(0, q.shape[0], step)
    ]
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs)


def _attend(q: Tensor, rows: Tensor, index: Tensor, counts: Tensor, sink: Tensor, scale: float) -> Tensor:
    if index.shape[1] == 0:
        return torch.zeros_like(q)
    folded: tuple[Tensor, Tensor, Tensor] | None = None
    wide, shortest = q.double(), int(counts.min())
    for first in range(0, index.shape[1], KEYS_PER_BLOCK):
        block = index[:, first : first + KEYS_PER_BLOCK]
        keys = rows[block.clamp(min=0)].double()
        logits = torch.bmm(wide, keys.mT).float().mul_(scale)
        if shortest < first + block.shape[1]:  # an entry is unused
            hidden = torch.arange(first, first + block.shape[1]) >= counts.unsqueeze(1)
            logits.masked_fill_(hidden.unsqueeze(1), -torch.inf)
            # It may name any row, so its key is cleared: 0 * NaN would carry a stranger's NaN into this query.
            keys.masked_fill_(hidden.unsqueeze(2), 0.0)
        maximum = logits.amax(-1).clamp_(min=EMPTY_MAXIMUM)
        if folded is not None:
            maximum = torch.maximum(maximum, folded[0])
        probabilities = (logits - maximum.unsqueeze(-1)).double().exp_().float()
        denominator = probabilities.sum(-1, dtype=torch.float64).float()
        total = torch.bmm(probabilities.to(q.dtype).double(), keys).float()
        if folded is not None:
            correction = (folded[0] - maximum).double().exp_().float()
            denominator = folded[1] * correction + denominator
            total = folded[2] * correction.unsqueeze(-1) + total
        folded = maximum, denominator, total
    assert folded is not None, "a list has at least one block"
    maximum, denominator, total = folded
    denominator = denominator + (sink - maximum).double().exp_().float()
    return (total / denominator.unsqueeze(-1)).to(q.dtype)
