"""Rotary embedding of the last channels, interleaved pairs.

Channels (2i, 2i+1) of the rotary tail are one complex number, turned by +theta:

    (a, b) -> (a cos - b sin, a sin + b cos)

Everything before the tail passes unchanged.  FP32 arithmetic, one store.  spec: attention.md section 4.
"""

import torch
from torch import Tensor


def rotate(x: Tensor, cos: Tensor, sin: Tensor, inverse: bool = False) -> Tensor:
    """Rotates the last 2*r channels of x [T, ..., d] by the angles of cos, sin FP32 [T, r]; inverse turns back."""
    width = 2 * cos.shape[-1]
    head, tail = x[..., :-width], x[..., -width:].float()
    shape = (x.shape[0], *([1] * (x.dim() - 2)), cos.shape[-1])
    cos, sin = cos.view(shape), (-sin if inverse else sin).view(shape)
    a, b = tail[..., 0::2], tail[..., 1::2]
    turned = torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)
    return torch.cat((head, turned.to(x.dtype)), -1)
