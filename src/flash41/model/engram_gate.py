"""Engram: hashed n-gram rows, added to the residual before a block.

    kv = wkv e;  key [T, S, D] = first S*D lanes, value [T, D] = the last D;   x[s] += gate[s] * value

The rows e were gathered on the host before the forward.  An image position has gate 0.  spec: engram.md section 4.
"""

from torch import Tensor, nn

from flash41.kernels.interface import Kernels
from flash41.model.batch import Step
from flash41.model.linear import ScaledLinear


class EngramGate(nn.Module):
    """`layers.L.engram` without its table."""

    def __init__(self, wkv: ScaledLinear, q_weight: Tensor, k_weight: Tensor, eps: float, kernels: Kernels) -> None:
        super().__init__()
        self.wkv = wkv
        self.q_weight = q_weight
        self.k_weight = k_weight
        self._eps = eps
        self._kernels = kernels

    def forward(self, x: Tensor, step: Step, layer_id: int) -> Tensor:
        """Streams [T, S, D] with this layer's n-gram value added."""
        rows = step.batch.engram[layer_id]
        num_rows, streams, width = x.shape
        kv = self.wkv(rows.values)
        key, value = kv[:, : streams * width].view(num_rows, streams, width), kv[:, streams * width :]
        gate = self._kernels.engram_gate(x, key, self.q_weight, self.k_weight, self._eps)
        if step.batch.image_mask is not None:
            gate = gate.masked_fill(step.batch.image_mask.unsqueeze(1), 0.0)
        step.probe(f"L{layer_id}.engram.rows", rows.row_ids)
        step.probe(f"L{layer_id}.engram.gate", gate)
        return self._kernels.engram_apply(x, gate, value)
