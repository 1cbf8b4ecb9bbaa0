"""Rotary embedding of the last channels, interleaved pairs.

Channels (2i, 2i+1) of the rotary tail are one complex number, turned by +theta:

    (a, b) -> (a cos - b sin, a sin + b cos)

Everything before the tail passes unchanged.  FP32 arithmetic, one store.  spec: attention.md section 4.
"""

from torch import Tensor


def rotate(x: Tensor, cos: Tensor, sin: Tensor, inverse: bool = False) -> Tensor:
    """Rotates the last 2*r channels of x [T, ..., d] by the angles of cos, sin FP32 [T, r]; inverse turns back."""
    turned = x.clone()
    tail = turned[..., -2 * cos.shape[-1] :]
    even, odd = tail[..., 0::2], tail[..., 1::2]
    shape = (x.shape[0], *([1] * (x.dim() - 2)), cos.shape[-1])
    cos, sin = cos.view(shape), (-sin if inverse else sin).view(shape)
    wide = tail.float()
    a, b = wide[..., 0::2], wide[..., 1::2]
    real, imaginary = a * cos - b * sin, a * sin + b * cos  # both before either is stored: a and b may be views
    even.copy_(real)
    odd.copy_(imaginary)
    return turned
