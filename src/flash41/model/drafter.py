"""The drafter's entrance: what the three draft stages see of the target model.

    c_t = RMS(main_proj(tap_1 ++ tap_2 ++ tap_3); main_norm)         one vector per token, shared by the stages

The taps are the mean over streams of the inputs of the layers the configuration lists.  spec: dspark.md section 1.
"""

from torch import Tensor, nn

from flash41.model.linear import RMSNorm, ScaledLinear


class TapProjection(nn.Module):
    """`mtp.0.main_proj` and `mtp.0.main_norm`."""

    def __init__(self, main_proj: ScaledLinear, main_norm: RMSNorm) -> None:
        super().__init__()
        self.main_proj = main_proj
        self.main_norm = main_norm

    def forward(self, taps: Tensor) -> Tensor:
        """[T, taps * D] -> [T, D]."""
        return self.main_norm(self.main_proj(taps))  # type: ignore[no-any-return]
