"""Attention of every row to all rows, as in the vision tower: one set of keys and values per head, no mask, no sink.

    a_nm = (q_n . k_m) * scale,     o_n = sum_m e^(a_nm - max_m a_nm) v_m / sum_m e^(a_nm - max_m a_nm)

FP64 sums, FP32 logits, probabilities and denominator; the probabilities meet V as they are; one store.  Heads are taken
one by one and queries in bands, since a picture of 9,189 patches has 84 million logits a head.  spec: vision.md
section 4.
"""

import torch
from torch import Tensor

LOGITS_PER_BAND = 1 << 22
"""Logits held at a time; bounds scratch memory, never changes a result."""


def full_attention(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """[N, H, d] in q's dtype; q, k, v [N, H, d]."""
    step = max(1, LOGITS_PER_BAND // k.shape[0])
    heads = []
    for head in range(q.shape[1]):
        keys, values = k[:, head].double().t(), v[:, head].double()
        bands = [_attend(band.double(), keys, values, scale) for band in q[:, head].split(step)]
        heads.append(torch.cat(bands).to(q.dtype))
    return torch.stack(heads, 1)


def _attend(q: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
    logits = torch.matmul(q, keys).float() * scale
    weights = (logits - logits.amax(-1, keepdim=True)).double().exp_().float().double()
    return torch.matmul(weights, values).float() / weights.sum(-1, keepdim=True).float()
