"""A quantised tensor: codes, scales, the format of both, and how many channels share a scale.

    value[r, k] = codes[r, k] * scales[r // group_rows, k // group_channels]

    group     element  scale     what
    (32, 32)  E4M3     E8M0      dense weights
    (1, 32)   E2M1     E8M0      routed experts, index rows
    (1, 32)   E4M3     E8M0      activations, window rows, Engram rows
    (1, 16)   E2M1     E4M3      compressed KV rows
    (1, d)    E4M3     FP32      index rows of the `atom` profile

A row [512] of compressed KV is 256 bytes of codes (two channels a byte, the even one in the low nibble) and 32 scales.

The quantisers take BF16 or FP32 [..., K], compute in FP32 and treat every group by itself: a group's codes depend on
nothing beside it.  NaN stays visible: a NaN channel makes its scale NaN and thereby its whole group when dequantised.
So does an infinity where the scale is a power of two; where it is E4M3 the scale saturates, and infinity reads 2688.

Knows nothing of the model.  spec: number-formats.md sections 2 to 5, 7 and 9.
"""

import enum
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from flash41.errors import KernelError, complaint
from flash41.numerics.bands import BAND_ROWS, CHUNK_CHANNELS, fits_bands, to_bands, to_rows
from flash41.numerics.formats import decode_e4m3, decode_e8m0, decode_packed_e2m1
from flash41.numerics.rounding import (
    encode_e2m1,
    encode_e4m3,
    nearest_e2m1,
    nearest_e4m3,
    nearest_e4m3_scaled,
    pack_fp4,
    power_of_two_at_least,
    power_of_two_scale,
)

INVERSE_448 = 0x924925 * 2.0**-32
"""fp32(1/448), pattern 0x3B124925."""

INVERSE_6 = 0xAAAAAB * 2.0**-26
"""fp32(1/6), pattern 0x3E2AAAAB."""

FP8_FLOOR = 1e-4
FP4_32_FLOOR = 6.0 * 2.0**-126
FP4_16_FLOOR = 6.0 * 2.0**-9


class ElementFormat(enum.Enum):
    """How a channel is stored."""

    E4M3 = "e4m3"
    E2M1 = "e2m1"


class ScaleFormat(enum.Enum):
    """How a scale is stored."""

    E8M0 = "e8m0"
    E4M3 = "e4m3"
    FP32 = "fp32"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Quantized:
    """Codes [..., N, K] and their scales [..., ceil(N / group rows), ceil(K / group channels)].

    KernelError when shapes or dtypes do not agree.
    """

    codes: Tensor
    """uint8; E2M1 holds two channels per byte: [..., K/2]."""
    scales: Tensor
    """uint8 bytes of `scale`, or float32 where that is FP32."""
    element: ElementFormat
    scale: ScaleFormat
    group: tuple[int, int]
    """(rows, channels) that share one scale."""
    in_bands: bool = False
    """Whether bytes of codes, and of scales of one row each, lie in bands (`numerics.bands`) and not in rows."""

    def __post_init__(self) -> None:
        rows, channels = self.group
        codes, scales = self.codes, self.scales
        width = codes.shape[-1] * (2 if self.element is ElementFormat.E2M1 else 1)
        lead = tuple(codes.shape[:-1])
        if rows > 1:
            lead = (*lead[:-1], -(-lead[-1] // rows))
        expected = (*lead, -(-width // channels))
        if scales.shape != expected:
            thing = f"shape of scales for codes {tuple(codes.shape)} in groups of {rows} x {channels}"
            raise KernelError(complaint(thing, tuple(scales.shape), str(expected)))
        scale_dtype = torch.float32 if self.scale is ScaleFormat.FP32 else torch.uint8
        if codes.dtype is not torch.uint8 or scales.dtype is not scale_dtype:
            raise KernelError(
                complaint("dtypes of codes and scales", (codes.dtype, scales.dtype), f"(torch.uint8, {scale_dtype})")
            )

    @property
    def shape(self) -> tuple[int, ...]:
        """[..., K] in channels, whatever the packing."""
        *lead, width = self.codes.shape
        return (*lead, 2 * width) if self.element is ElementFormat.E2M1 else (*lead, width)

    @property
    def num_bytes(self) -> int:
        """Bytes of codes and scales."""
        return self.codes.nbytes + self.scales.nbytes

    def values(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """Decoded codes without their scales, [..., K]."""
        if self.in_bands:
            return self.in_rows().values(dtype)
        if self.element is ElementFormat.E4M3:
            return decode_e4m3(self.codes, dtype)
        return decode_packed_e2m1(self.codes, dtype)

    def scale_values(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """Decoded scales, one per group."""
        if self.in_bands:
            return self.in_rows().scale_values(dtype)
        if self.scale is ScaleFormat.E8M0:
            return decode_e8m0(self.scales, dtype)
        if self.scale is ScaleFormat.E4M3:
            return decode_e4m3(self.scales, dtype)
        return self.scales.to(dtype)

    def dequantize(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """Each code times its scale, [..., K]: exact in FP32 (in FP64 for float64), then rounded to `dtype`."""
        wide = torch.float64 if dtype is torch.float64 else torch.float32
        values, scales = self.values(wide), self.scale_values(wide)
        *lead, width = values.shape
        rows, channels = self.group
        if rows > 1:
            scales = scales.repeat_interleave(rows, -2)[..., : lead[-1], :]
        # `values` is a fresh tensor, so the product takes its place.
        if width % channels:
            values *= scales.repeat_interleave(channels, -1)[..., :width]
        else:
            values.view(*lead, width // channels, channels).mul_(scales.unsqueeze(-1))
        return values.to(dtype)

    def rows(self, index: Tensor | slice) -> "Quantized":
        """The rows that `index` selects along the first dim; for groups of one row."""
        if self.group[0] != 1:
            raise KernelError(complaint("rows sharing a scale", self.group[0], "1 to select rows", "use slice_rows"))
        whole = self.in_rows()
        return whole._with(whole.codes[index], whole.scales[index])

    def slice_rows(self, first: int, last: int) -> "Quantized":
        """Rows first..last-1 of [..., N, K] as a view; cuts fall between groups or at the end.

        A copy where a cut falls into a band.
        """
        rows, num_rows = self.group[0], self.codes.shape[-2]
        if not 0 <= first <= last <= num_rows or first % rows or (last % rows and last != num_rows):
            expected = f"multiples of {rows} in order, at most {num_rows}"
            raise KernelError(complaint("cut of a quantised tensor", (first, last), expected))
        if self.in_bands and (first % BAND_ROWS or last % BAND_ROWS):
            return self.in_rows().slice_rows(first, last)
        groups = slice(first // rows, -(-last // rows))
        return self._with(self.codes[..., first:last, :], self.scales[..., groups, :])

    def in_rows(self) -> "Quantized":
        """The same tensor in rows: itself, or a copy of one in bands."""
        if not self.in_bands:
            return self
        scales = to_rows(self.scales, self._chunk_scales) if self.group[0] == 1 else self.scales
        return replace(self, codes=to_rows(self.codes, self._chunk_bytes), scales=scales, in_bands=False)

    def put_in_bands(self) -> "Quantized":
        """The same weight with its bytes moved, in the memory they lie in; itself where it is not whole bands.

        For a weight [N, K] with groups of 32 channels and memory of its own, before anybody else reads it.
        """
        contiguous = self.codes.is_contiguous() and self.scales.is_contiguous()
        if (
            self.in_bands
            or len(self.shape) != 2
            or self.group[1] != 32
            or not contiguous
            or not fits_bands(*self.shape)
        ):
            return self
        self.codes.copy_(to_bands(self.codes, self._chunk_bytes))
        if self.group[0] == 1:
            self.scales.copy_(to_bands(self.scales, self._chunk_scales))
        return replace(self, in_bands=True)

    @property
    def _chunk_bytes(self) -> int:
        return CHUNK_CHANNELS // 2 if self.element is ElementFormat.E2M1 else CHUNK_CHANNELS

    @property
    def _chunk_scales(self) -> int:
        return CHUNK_CHANNELS // self.group[1]

    def _with(self, codes: Tensor, scales: Tensor) -> "Quantized":
        return replace(self, codes=codes, scales=scales)


def quantize_fp8_32(x: Tensor) -> Quantized:
    """E4M3 with a power-of-two scale per 32 channels: activations, window KV, draft KV.

        a = max(max|x|, 1e-4);  s = smallest power of two >= a * fp32(1/448);  code = E4M3(x / s)

    spec: number-formats.md section 2.
    """
    groups, largest = _groups(x, 32, FP8_FLOOR)
    scale_bytes = power_of_two_at_least(largest * INVERSE_448)
    codes = encode_e4m3(groups / decode_e8m0(scale_bytes))
    return _quantized(codes.flatten(-2), scale_bytes, ElementFormat.E4M3, ScaleFormat.E8M0, 32)


def quantize_fp4_32(x: Tensor) -> Quantized:
    """E2M1 with a power-of-two scale per 32 channels: index q and k.

        a = max(max|x|, 6 * 2^-126);  s = smallest power of two >= a * fp32(1/6);  code = E2M1(x / s)

    spec: number-formats.md section 3.
    """
    groups, largest = _groups(x, 32, FP4_32_FLOOR)
    scale_bytes = power_of_two_at_least(largest * INVERSE_6)
    codes = encode_e2m1(groups / decode_e8m0(scale_bytes))
    return _quantized(pack_fp4(codes.flatten(-2)), scale_bytes, ElementFormat.E2M1, ScaleFormat.E8M0, 32)


def quantize_fp4_16(x: Tensor) -> Quantized:
    """E2M1 with an E4M3 scale per 16 channels: compressed KV.

        a = max(max|x|, 6 * 2^-9);  s = E4M3(a / 6), at most 448;  code = E2M1(x / s), divided by the rounded s

    spec: number-formats.md section 4.
    """
    groups, largest = _groups(x, 16, FP4_16_FLOOR)
    scale_codes = encode_e4m3(largest / 6.0)
    codes = encode_e2m1(groups / decode_e4m3(scale_codes))
    return _quantized(pack_fp4(codes.flatten(-2)), scale_codes, ElementFormat.E2M1, ScaleFormat.E4M3, 16)


def quantize_fp8_row(x: Tensor) -> Quantized:
    """E4M3 with one FP32 power-of-two scale for the whole last dim: index rows of the `atom` profile.

        s = smallest power of two >= max(max|x|, 1e-4) / 448;  code = E4M3(x / s)

    spec: number-formats.md section 9.
    """
    width = x.shape[-1]
    groups, largest = _groups(x, width, FP8_FLOOR)
    scales = decode_e8m0(power_of_two_at_least(largest / 448.0))
    codes = encode_e4m3(groups / scales)
    return _quantized(codes.flatten(-2), scales, ElementFormat.E4M3, ScaleFormat.FP32, width)


def fake_fp8_32(x: Tensor) -> Tensor:
    """What x reads after storage as FP8/32, in x's dtype (exact in BF16)."""
    return round_fp8_32(x).to(x.dtype)


def round_fp8_32(x: Tensor) -> Tensor:
    """`quantize_fp8_32` and back in one go: FP64 values on the FP8/32 grid, for products that need no codes.

    Equal to the detour over codes for every finite input; a NaN or an infinity leaves at least one NaN in its group.
    """
    groups = _split(x.double(), 32)
    largest = torch.linalg.vector_norm(groups, torch.inf, -1, keepdim=True).clamp_(min=FP8_FLOOR)
    return nearest_e4m3_scaled(groups, largest).view(x.shape)


def fake_fp4_32(x: Tensor) -> Tensor:
    """What x reads after storage as FP4/32, in x's dtype (exact in BF16)."""
    groups, largest = _groups(x, 32, FP4_32_FLOOR)
    scale = power_of_two_scale(largest * INVERSE_6)
    return nearest_e2m1(groups / scale).mul_(scale).view(x.shape).to(x.dtype)


def fake_fp4_16(x: Tensor) -> Tensor:
    """What x reads after storage as FP4/16, in x's dtype (exact in BF16)."""
    groups, largest = _groups(x, 16, FP4_16_FLOOR)
    scale = nearest_e4m3(largest / 6.0)
    return nearest_e2m1(groups / scale).mul_(scale).view(x.shape).to(x.dtype)


def _groups(x: Tensor, channels: int, floor: float) -> tuple[Tensor, Tensor]:
    """FP32 [..., groups, channels] and max(max|x|, floor) of each group as [..., groups, 1]."""
    groups = _split(x.float(), channels)
    return groups, groups.abs().amax(-1, keepdim=True).clamp_(min=floor)


def _split(x: Tensor, channels: int) -> Tensor:
    """[..., groups, channels] of x [..., K]."""
    if x.shape[-1] % channels or x.shape[-1] == 0:
        raise KernelError(complaint("channels to quantise", x.shape[-1], f"a positive multiple of {channels}"))
    return x.reshape(*x.shape[:-1], x.shape[-1] // channels, channels)


def _quantized(codes: Tensor, scales: Tensor, element: ElementFormat, scale: ScaleFormat, channels: int) -> Quantized:
    return Quantized(codes=codes, scales=scales.squeeze(-1), element=element, scale=scale, group=(1, channels))
