"""From the patches of a picture to the rows of its span, which replace the embedding of the text model.

    aligner     the tower's [height, width, C], zeros added below and at the right up to multiples of q; each square of
                q x q becomes one vector, channel by channel (index c*q*q + y*q + x); then  w2(gelu(w1 v)),  both with
                bias, gelu exact (erf)
    span        START, then every row of image tokens followed by NEWLINE, then END

The rows are all a picture leaves: positions are ordinary, attention among them is causal.  spec: vision.md sections 5
and 6.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from flash41.model.batch import Probe, Silent
from flash41.model.vision import BiasedLinear, Grid, VisionTower


def fold(x: Tensor, grid: Grid, ratio: int) -> Tensor:
    """[rows * columns, C * ratio^2] of patch vectors [N, C], channel-major inside a square."""
    width, channels = -(-grid.width // ratio), x.shape[1]
    planes = x.view(grid.height, grid.width, channels)
    planes = functional.pad(planes, (0, 0, 0, -grid.width % ratio, 0, -grid.height % ratio))
    squares = planes.view(-1, ratio, width, ratio, channels)  # row, y, column, x, channel
    return squares.permute(0, 2, 4, 1, 3).reshape(-1, channels * ratio * ratio)


def gelu(x: Tensor) -> Tensor:
    """X times the normal distribution function of x, by the error function."""
    return 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))


class Aligner(nn.Module):
    """`aligner`."""

    def __init__(self, w1: BiasedLinear, w2: BiasedLinear, ratio: int) -> None:
        super().__init__()
        self.w1, self.w2 = w1, w2
        self.ratio = ratio

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        """Patch vectors [N, C] -> image tokens [rows * columns, D]."""
        inner = self.w1(fold(x, grid, self.ratio))
        return self.w2(gelu(inner.double()).to(x.dtype))  # type: ignore[no-any-return]


class ImageEncoder(nn.Module):
    """Tower, aligner and the three vectors around image tokens."""

    def __init__(
        self,
        tower: VisionTower,
        aligner: Aligner,
        *,
        start: Tensor,
        newline: Tensor,
        end: Tensor,
        dtype: torch.dtype,
    ) -> None:
        super().__init__()
        self.tower, self.aligner = tower, aligner
        self.start, self.newline, self.end = start, newline, end
        self._dtype = dtype

    @torch.inference_mode()
    def forward(self, values: Tensor, grid: Grid, probe: Probe | None = None) -> Tensor:
        """Rows [span, D] of one picture, from the BF16 values [N, 3pp] of its patches."""
        listener = probe or Silent()
        tokens = self.aligner(self.tower(values.to(self._dtype), grid, listener), grid)
        listener("vision.aligner", tokens)
        columns, width = -(-grid.width // self.aligner.ratio), tokens.shape[1]
        newlines = self.newline.to(self._dtype).expand(len(tokens) // columns, 1, width)
        lines = torch.cat([tokens.view(-1, columns, width), newlines], 1).flatten(0, 1)
        return torch.cat([self.start.to(self._dtype).unsqueeze(0), lines, self.end.to(self._dtype).unsqueeze(0)])
