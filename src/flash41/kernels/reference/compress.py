"""Pooling of a ratio-2 group: per channel, a softmax over the two gate values weighs the two token values.

    u = sum_i softmax(c)_i * v_i ,   i over the tokens of the group, each channel on its own

Groups never overlap; there is no positional term and no bias.  spec: attention.md section 10.
"""

from torch import Tensor


def pool_group(values: Tensor, scores: Tensor) -> Tensor:
    """FP32 [n, channels] from FP32 values and scores [n, ratio, channels]."""
    weights = scores.double().softmax(1)
    return (weights * values.double()).sum(1).float()
