"""The Engram gate: how much of a gathered n-gram value enters each residual stream.

Per stream s, with one gain product per stream:

    dot  = sum_i x[s,i] * (q[s,i] * k[s,i]) * key[s,i]
    dot  = dot * (mean(x[s]^2)+eps)^(-1/2) * (mean(key[s]^2)+eps)^(-1/2) / sqrt(D)
    gate = sigmoid(copysign(sqrt(max(|dot|, 1e-6)), dot))
    out  = x[s] + gate * value

A masked (image) position has gate 0 and passes bit for bit.  spec: engram.md section 4.
"""

import torch
from torch import Tensor

from flash41.kernels.reference.arithmetic import inverse_rms

DOT_FLOOR = 1e-6
"""Lower bound of |dot|: the gate is never exactly one half."""


def engram_gate(x: Tensor, key: Tensor, q_weight: Tensor, k_weight: Tensor, eps: float) -> Tensor:
    """Gate FP32 [T, S]; x and key [T, S, D], gains [S, D]."""
    gain = (q_weight.float() * k_weight.float()).double()
    x, key = x.double(), key.double()
    dot = (x * gain).mul_(key).sum(-1)
    statistics = inverse_rms(x, eps).mul_(inverse_rms(key, eps)).squeeze_(-1)
    dot = dot.mul_(statistics).mul_(x.shape[-1] ** -0.5)
    return torch.copysign(dot.abs().clamp(min=DOT_FLOOR).sqrt(), dot).sigmoid().float()


def engram_apply(x: Tensor, gate: Tensor, value: Tensor) -> Tensor:
    """X [T, S, D] + gate [T, S] * value [T, D], FP32, stored in x's dtype; a gate of 0 changes no bit."""
    mixed = x.float() + gate.unsqueeze(-1) * value.float().unsqueeze(1)
    return torch.where((gate == 0).unsqueeze(-1), x, mixed.to(x.dtype))
