"""Rotary tables: which frequencies a layer uses, and the angles of a set of positions.

    ratio 0       f_i = theta^(-2i/r)
    ratio 1, 2    u_i = compress_theta^(-2i/r);   f_i = u_i (1 - ramp_i) + (u_i / factor) ramp_i           (YaRN)
                  ramp_i = clamp((i - low) / (high - low), 0, 1)
                  low, high = floor, ceil of  r ln(original / (2 pi n)) / (2 ln compress_theta),  n = beta_fast,
                  beta_slow

YaRN depends on no length, has no magnitude factor and leaves the softmax scale alone.  An angle is the FP32 product of
an FP32 position and an FP32 frequency, rounded before cosine and sine.  spec: attention.md section 4.
"""

import math

import torch
from torch import Tensor, nn

from flash41.config.architecture import RopeConfig
from flash41.model.batch import Angles


def plain_frequencies(config: RopeConfig) -> list[float]:
    """Frequencies of layers that see only their window."""
    return [config.theta ** (-2 * i / config.head_dim) for i in range(config.head_dim // 2)]


def yarn_frequencies(config: RopeConfig) -> list[float]:
    """Frequencies of layers with compressed rows."""
    width, theta = config.head_dim, config.compress_theta

    def correction(rotations: float) -> float:
        return width * math.log(config.yarn_original_positions / (2 * math.pi * rotations)) / (2 * math.log(theta))

    low = max(math.floor(correction(config.yarn_beta_fast)), 0)
    high = min(math.ceil(correction(config.yarn_beta_slow)), width - 1)
    frequencies = []
    for i in range(width // 2):
        ramp = min(max((i - low) / max(high - low, 0.001), 0.0), 1.0)
        unscaled = theta ** (-2 * i / width)
        frequencies.append(unscaled * (1 - ramp) + unscaled / config.yarn_factor * ramp)
    return frequencies


class Rope(nn.Module):
    """Angles for both kinds of layer."""

    def __init__(self, config: RopeConfig) -> None:
        super().__init__()
        self.window_frequencies = torch.tensor(plain_frequencies(config), dtype=torch.float32)
        self.compressed_frequencies = torch.tensor(yarn_frequencies(config), dtype=torch.float32)

    def angles(self, positions: Tensor, ratio: int) -> Angles:
        """Cos and sin FP32 [n, r/2] of int64 positions [n] with the table of layers of `ratio`."""
        table = self.window_frequencies if ratio == 0 else self.compressed_frequencies
        angle = (positions.float().unsqueeze(1) * table).double()
        return angle.cos().float(), angle.sin().float()
