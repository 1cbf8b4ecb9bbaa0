"""Manifold-constrained hyper-connections: how four residual streams are read, mixed and written.

Per token, from the streams x [S, D] flattened stream-major to v [S*D]:

    m    = (fn . v) * (mean(v^2) + eps)^(-1/2)            product first, factor after
    pre  = sigmoid(m[:S] * scale[0] + base[:S]) + hc_eps
    post = 2 * sigmoid(m[S:2S] * scale[1] + base[S:2S])
    comb = sinkhorn(m[2S:] * scale[2] + base[2S:])         [S, S], row = source stream, column = destination

The collapse u = sum_j pre_j x_j uses the `pre` of the sub-layer before; post and comb belong to this one:

    x'[k] = post_k * y + sum_j comb[j, k] * x[j]           the summed index is the first one of comb

spec: mhc.md sections 3 and 4.  All coefficients are FP32.
"""

import numpy as np
import torch
from torch import Tensor

from flash41.kernels.reference.arithmetic import inverse_rms, stored
from flash41.kernels.reference.decoded import DecodedWeights
from flash41.kernels.reference.linear import linear


def mhc_mixes(
    x: Tensor,
    fn: Tensor,
    base: Tensor,
    scale: Tensor,
    iterations: int,
    hc_eps: float,
    norm_eps: float,
    decoded: DecodedWeights,
) -> tuple[Tensor, Tensor, Tensor]:
    """Coefficients of one sub-layer from the streams x [T, S, D]: pre [T, S], post [T, S], comb [T, S, S], FP32."""
    num_rows, streams = x.shape[0], x.shape[1]
    flat = x.reshape(num_rows, -1).double()
    mixed = linear(flat, fn, torch.float32, decoded).mul_(inverse_rms(flat, norm_eps).float())
    mixed = mixed.mul_(decoded.spread(scale, (streams, streams, streams * streams))).add_(base)
    gates, comb = mixed.split_with_sizes((2 * streams, streams * streams), 1)
    pre, post = gates.double().sigmoid_().float().chunk(2, 1)
    return pre + hc_eps, post * 2.0, sinkhorn(comb.view(num_rows, streams, streams), iterations, hc_eps)


def sinkhorn(logits: Tensor, iterations: int, hc_eps: float) -> Tensor:
    """[..., S, S] FP32 logits -> FP32 mixing matrix, truncated after `iterations` rounds that end on columns.

    The first row normalisation is the softmax, with eps added after it instead of in the denominator.  It is not
    iterated to convergence: columns sum to 1 - eps, rows only nearly to 1.  FP64 in numpy, whose small in-place
    operations cost a fraction of torch's.
    """
    comb = (logits.double().softmax(-1) + hc_eps).numpy()
    # Products with a matrix of ones are row and column sums that already have the shape to divide by.
    ones, sums = np.ones(comb.shape[-2:]), np.empty_like(comb)
    matmul, add, divide = np.matmul, np.add, np.divide
    for turn in range(iterations):
        if turn:
            divide(comb, add(matmul(comb, ones, sums), hc_eps, sums), comb)
        divide(comb, add(matmul(ones, comb, sums), hc_eps, sums), comb)
    return torch.from_numpy(comb).float()


def mhc_collapse(x: Tensor, pre: Tensor) -> Tensor:
    """U [T, D] = sum_j pre_j x_j, FP32 sum, stored in x's dtype."""
    return stored(torch.bmm(pre.double().unsqueeze(1), x.double()).squeeze(1), x.dtype)


def mhc_apply(x: Tensor, y: Tensor, post: Tensor, comb: Tensor) -> Tensor:
    """New streams [T, S, D] from the old ones and the sub-layer's output y [T, D]."""
    # One product over the streams and y together: post is one more row of coefficients.
    coefficients = torch.cat((comb, post.unsqueeze(1)), 1).double()
    values = torch.cat((x, y.unsqueeze(1)), 1).double()
    return stored(torch.bmm(coefficients.transpose(1, 2), values), x.dtype)
