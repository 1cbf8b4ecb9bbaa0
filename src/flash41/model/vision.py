"""The vision tower: patches of one picture to one vector per patch.

    x = patch_embed(values)                              [N, 3pp] -> [N, C], with bias
    x = x + wo(attention(norm1(x)))                      every block; wqkv and wo with bias
    x = x + w2(silu(gate) * up),  gate, up = w1(norm2(x))    no bias, no clamp
    out = norm(x)

No class token and no absolute positions: a patch knows its place by a rotation of q and k.  With d channels a head and
f_i = theta^(-4i/d), i < d/4, the angles of the patch in row y, column x are y*f_0 .. y*f_last, x*f_0 .. x*f_last, and
channel j turns with channel j + d/2 (half-split, unlike the text model):

    (u_j, u_j+d/2) -> (u_j cos - u_j+d/2 sin,  u_j+d/2 cos + u_j sin)

All patches of a picture see each other.  Norms have epsilon 1e-6.  Weights are BF16.  spec: vision.md section 4.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from flash41.kernels.interface import Kernels
from flash41.model.batch import Angles, Probe
from flash41.model.linear import RMSNorm

VISION_NORM_EPS = 1e-6
"""Epsilon of the tower's norms; the text model's is 1e-20."""

ROWS_PER_BAND = 256
"""Patches that pass a linear map together: bounds scratch memory.  A row's result does not depend on its company."""


class BiasedLinear(nn.Module):
    """A BF16 weight with a bias, which is added in FP32 before the one store."""

    def __init__(self, weight: Tensor, bias: Tensor | None, kernels: Kernels) -> None:
        super().__init__()
        self.weight = weight
        self.bias = bias
        self._kernels = kernels

    def forward(self, x: Tensor) -> Tensor:
        """[N, K] -> [N, M] in x's dtype."""
        if self.bias is None:
            return self._kernels.linear(x, self.weight, x.dtype)
        return (self._kernels.linear(x, self.weight, torch.float32) + self.bias.float()).to(x.dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """The patches of one picture."""

    height: int
    """Rows of patches."""
    width: int
    """Patches in a row."""

    def angles(self, head_dim: int, theta: float) -> Angles:
        """Cos and sin FP32 [height * width, head_dim / 2], the angles of the row first."""
        frequencies = torch.tensor([theta ** (-4 * i / head_dim) for i in range(head_dim // 4)])
        rows, columns = (torch.arange(n).float().unsqueeze(1) * frequencies for n in (self.height, self.width))
        shape = (self.height, self.width, head_dim // 4)
        angle = torch.cat([rows.unsqueeze(1).expand(shape), columns.unsqueeze(0).expand(shape)], -1)
        wide = angle.flatten(0, 1).double()
        return wide.cos().float(), wide.sin().float()


def rotate_halves(x: Tensor, angles: Angles) -> Tensor:
    """X [N, H, d] with channels j and j + d/2 turned by the angles [N, d/2]; FP32 arithmetic, one store."""
    cos, sin = (part.unsqueeze(1) for part in angles)
    a, b = x.float().chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)


class VisionBlock(nn.Module):
    """`vision.blocks.N`."""

    def __init__(
        self,
        *,
        norm1: RMSNorm,
        wqkv: BiasedLinear,
        wo: BiasedLinear,
        norm2: RMSNorm,
        w1: BiasedLinear,
        w2: BiasedLinear,
        num_heads: int,
        kernels: Kernels,
    ) -> None:
        super().__init__()
        self.norm1, self.wqkv, self.wo = norm1, wqkv, wo
        self.norm2, self.w1, self.w2 = norm2, w1, w2
        self._num_heads = num_heads
        self._kernels = kernels

    def forward(self, x: Tensor, angles: Angles) -> Tensor:
        """[N, C] -> [N, C]."""
        mixed = self._attention(x, angles)
        bands = zip(x.split(ROWS_PER_BAND), mixed.split(ROWS_PER_BAND), strict=True)
        return torch.cat([self._mlp(rows + self.wo(band)) for rows, band in bands])

    def _mlp(self, x: Tensor) -> Tensor:
        gate, up = self.w1(self.norm2(x)).chunk(2, -1)
        opened = (gate.double() * gate.double().sigmoid()).to(x.dtype)  # stored before the product, as the tower was
        return x + self.w2(opened * up)  # type: ignore[no-any-return]

    def _attention(self, x: Tensor, angles: Angles) -> Tensor:
        bands = zip(*(part.split(ROWS_PER_BAND) for part in (x, *angles)), strict=True)
        q, k, v = (torch.cat(parts) for parts in zip(*(self._turned(*band) for band in bands), strict=True))
        return self._kernels.full_attention(q, k, v, q.shape[-1] ** -0.5).flatten(1)

    def _turned(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Rotated q and k, and v, all [n, H, d]."""
        q, k, v = (part.unflatten(1, (self._num_heads, -1)) for part in self.wqkv(self.norm1(x)).chunk(3, -1))
        return rotate_halves(q, (cos, sin)), rotate_halves(k, (cos, sin)), v


class VisionTower(nn.Module):
    """`vision`."""

    def __init__(
        self, patch_embed: BiasedLinear, blocks: Sequence[VisionBlock], norm: RMSNorm, head_dim: int, theta: float
    ) -> None:
        super().__init__()
        self.patch_embed = patch_embed
        self.blocks = nn.ModuleList(blocks)
        self.norm = norm
        self._head_dim = head_dim
        self._theta = theta

    def forward(self, values: Tensor, grid: Grid, probe: Probe) -> Tensor:
        """[N, 3pp] values of one picture's patches, row after row -> [N, C]."""
        angles = grid.angles(self._head_dim, self._theta)
        x = self.patch_embed(values)
        for block_id, block in enumerate(self.blocks):
            x = block(x, angles)
            probe(f"vision.block{block_id}", x)
        x = self.norm(x)
        probe("vision.norm", x)
        return x
