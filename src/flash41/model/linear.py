"""Linear modules, one per way of storing and multiplying a weight.

They hold a weight in its stored format and know which operation of the kernels the profile asks for.  A token calls
dozens of them, so they are plain callables: there is nothing to train, move or hook.
"""

import torch
from torch import Tensor

from flash41.config.run import Profile
from flash41.kernels.interface import Kernels
from flash41.numerics.scaled import Quantized


class ScaledLinear:
    """An FP8 or FP4 weight with its scales; the input is quantised unless the profile rounds no activation."""

    def __init__(self, weight: Quantized, kernels: Kernels, profile: Profile) -> None:
        self.weight = weight
        self._kernels = kernels
        self._quantizes = profile.quantizes_activations

    def __call__(self, x: Tensor) -> Tensor:
        """[..., K] -> [..., N] in x's dtype."""
        if self._quantizes:
            return self._kernels.scaled_linear(x, self.weight)
        return self._kernels.dequantized_linear(x, self.weight)

    def beside(self, other: "ScaledLinear", x: Tensor) -> tuple[Tensor, Tensor]:
        """This map and another of the same input, which is quantised once for both."""
        if self._quantizes:
            first, second = self._kernels.scaled_linears(x, (self.weight, other.weight))
            return first, second
        return self(x), other(x)


class Linear:
    """A BF16 or FP32 weight, used unquantised; stored in x's dtype, or in FP32 where `wide` asks for it."""

    def __init__(self, weight: Tensor, kernels: Kernels, wide: bool = False) -> None:
        self.weight = weight
        self._kernels = kernels
        self._wide = wide

    def __call__(self, x: Tensor) -> Tensor:
        """[..., K] -> [..., N]."""
        return self._kernels.linear(x, self.weight, torch.float32 if self._wide else x.dtype)


class GroupedOutput:
    """`wo_a`: consecutive heads form groups, each with its own matrix [rank, group inputs].

    The profile decides how the FP8 weight meets its input: `fp8` quantises the input per 32 channels; `bf16` and `fp32`
    leave it alone and use the exact weight, which is a BF16 number: a code has 4 bits and its scale is a power of two.
    spec: attention.md section 8.
    """

    def __init__(self, weight: Quantized, groups: int, kernels: Kernels, profile: Profile) -> None:
        self.weight = weight
        self.groups = groups
        self._kernels = kernels
        self._mode = profile.wo_a
        rank = weight.shape[0] // groups
        # Views of the stored bytes, made once: a backend that keeps decoded weights knows them again.
        self._parts = tuple(weight.slice_rows(group * rank, (group + 1) * rank) for group in range(groups))

    def __call__(self, x: Tensor) -> Tensor:
        """[T, groups, inputs] -> [T, groups * rank]."""
        if self._mode == "fp8":
            return torch.cat(
                [self._kernels.scaled_linear(x[:, group], part) for group, part in enumerate(self._parts)], 1
            )
        return self._kernels.grouped_linear(x, self._parts).flatten(1)


class RMSNorm:
    """RMS normalisation with a weight and no bias."""

    def __init__(self, weight: Tensor, eps: float, kernels: Kernels) -> None:
        self.weight = weight
        self.eps = eps
        self._kernels = kernels

    def __call__(self, x: Tensor) -> Tensor:
        """[..., d] -> [..., d] in x's dtype."""
        return self._kernels.rms_norm(x, self.weight, self.eps)
