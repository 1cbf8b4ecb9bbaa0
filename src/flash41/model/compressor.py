"""The compressor of a FULL layer: from attention inputs to latent rows.

    ratio 1    latent_p = RMS(wkv x_p; norm)
    ratio 2    latent_j = RMS(store(pool(v, c)); norm),   v = wkv x, c = wgate x in FP32 over tokens 2j and 2j+1

Two branches start at the latent: the index key from the un-rotated latent, and the main row, which is rotated and
rounded.  spec: attention.md section 10.
"""

from torch import Tensor, nn

from flash41.cache.views import BatchView
from flash41.kernels.interface import Kernels
from flash41.model.linear import Linear, RMSNorm


class Compressor(nn.Module):
    """`attn.compressor` of one owner; `wgate` is None where a row is one token."""

    def __init__(self, wkv: Linear, wgate: Linear | None, norm: RMSNorm, ratio: int, kernels: Kernels) -> None:
        super().__init__()
        self.wkv = wkv
        self.wgate = wgate
        self.norm = norm
        self.ratio = ratio
        self._kernels = kernels

    def forward(self, x: Tensor, view: BatchView, owner: int) -> Tensor:
        """Latent rows [n, d] of the groups this batch closes, from x [T, D]."""
        values = self.wkv(x)
        if self.wgate is None:
            return self.norm(values[view.closed_groups(self.ratio).last_rows])
        members = view.group_members(owner, values, self.wgate(x))
        if len(members[0]) == 0:
            return x.new_empty(0, values.shape[1])  # every group stays open
        return self.norm(self._kernels.pool_group(*members).to(x.dtype))
