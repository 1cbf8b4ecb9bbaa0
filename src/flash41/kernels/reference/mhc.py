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

import torch
from torch import Tensor

from flash41.kernels.reference.arithmetic import matmul, mean_square


def mhc_mixes(
    x: Tensor, fn: Tensor, base: Tensor, scale: Tensor, iterations: int, hc_eps: float, norm_eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Coefficients of one sub-layer from the streams x [T, S, D]: pre [T, S], post [T, S], comb [T, S, S], FP32."""
    num_rows, streams = x.shape[0], x.shape[1]
    flat = x.reshape(num_rows, -1)
    factor = (mean_square(flat) + norm_eps).rsqrt()
    mixed = (matmul(flat, fn.t()).float() * factor.float()).double()
    scales = scale.double().repeat_interleave(torch.tensor([streams, streams, streams * streams]))
    logits = (mixed * scales).float().add(base).double()
    pre = logits[:, :streams].sigmoid().float() + hc_eps
    post = 2.0 * logits[:, streams : 2 * streams].sigmoid().float()
    comb = sinkhorn(logits[:, 2 * streams :].view(num_rows, streams, streams), iterations, hc_eps)
    return pre, post, comb


def sinkhorn(logits: Tensor, iterations: int, hc_eps: float) -> Tensor:
    """[..., S, S] FP64 logits -> FP32 mixing matrix, truncated after `iterations` rounds that end on columns.

    The first row normalisation is the softmax, with eps added after it instead of in the denominator.  It is not
    iterated to convergence: columns sum to 1 - eps, rows only nearly to 1.
    """
    comb = logits.softmax(-1) + hc_eps
    comb = comb / (comb.sum(-2, keepdim=True) + hc_eps)
    for _ in range(iterations - 1):
        comb = comb / (comb.sum(-1, keepdim=True) + hc_eps)
        comb = comb / (comb.sum(-2, keepdim=True) + hc_eps)
    return comb.float()


def mhc_collapse(x: Tensor, pre: Tensor) -> Tensor:
    """u [T, D] = sum_j pre_j x_j, FP32 sum, stored in x's dtype."""
    return matmul(pre.unsqueeze(1), x).squeeze(1).float().to(x.dtype)


def mhc_apply(x: Tensor, y: Tensor, post: Tensor, comb: Tensor) -> Tensor:
    """New streams [T, S, D] from the old ones and the sub-layer's output y [T, D]."""
    mixed = matmul(comb.transpose(1, 2), x) + post.double().unsqueeze(2) * y.double().unsqueeze(1)
    return mixed.float().to(x.dtype)
