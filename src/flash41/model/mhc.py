"""One sub-layer's hyper-connection: its parameters and the coefficients they predict.

What is delayed is only `pre`: a sub-layer's input is collapsed with the `pre` predicted by the sub-layer before it,
while `post` and `comb` belong to the sub-layer that predicted them.  spec: mhc.md.
"""

import torch
from torch import Tensor

from flash41.config.architecture import ModelConfig
from flash41.kernels.interface import Kernels


class HyperConnection:
    """`hc_attn_*` or `hc_ffn_*` of one layer; parameters FP32."""

    def __init__(self, fn: Tensor, base: Tensor, scale: Tensor, config: ModelConfig, kernels: Kernels) -> None:
        self.fn = fn
        self.base = base
        self.scale = scale
        self._iterations = config.mhc.sinkhorn_iterations
        self._hc_eps = config.mhc.eps
        self._norm_eps = config.rms_norm_eps
        self._kernels = kernels

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Pre [T, S], post [T, S] and comb [T, source, destination] from the streams x [T, S, D]."""
        return self._kernels.mhc_mixes(
            x, self.fn, self.base, self.scale, self._iterations, self._hc_eps, self._norm_eps
        )


def open_streams(rows: Tensor, streams: int) -> tuple[Tensor, Tensor]:
    """The residual [T, S, D] that embedding rows [T, D] open, and its collapse weights FP32 [T, S].

    Every stream starts as a copy of the row, and the first collapse reads stream 0.
    """
    pre_mix = torch.zeros(len(rows), streams)
    pre_mix[:, 0] = 1.0
    return rows.unsqueeze(1).expand(-1, streams, -1).contiguous(), pre_mix
