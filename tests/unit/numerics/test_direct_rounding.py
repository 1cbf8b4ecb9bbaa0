"""The direct rounding of activations equals the way over codes, bit for bit."""

from collections.abc import Callable

import pytest
import torch

from flash41.numerics.formats import decode_e2m1, decode_e4m3, decode_e8m0
from flash41.numerics.rounding import (
    encode_e2m1,
    encode_e4m3,
    nearest_e2m1,
    nearest_e4m3,
    power_of_two_at_least,
    power_of_two_scale,
)
from flash41.numerics.scaled import (
    Quantized,
    fake_fp4_16,
    fake_fp4_32,
    fake_fp8_32,
    quantize_fp4_16,
    quantize_fp4_32,
    quantize_fp8_32,
    round_fp8_32,
)


def every_finite_bf16() -> torch.Tensor:
    bits = torch.arange(65536, dtype=torch.int32) << 16
    values = bits.view(torch.float32)
    return values[torch.isfinite(values)]


def test_nearest_value_is_the_decoded_nearest_code_for_every_finite_bf16_number() -> None:
    x = every_finite_bf16()
    assert torch.equal(nearest_e4m3(x), decode_e4m3(encode_e4m3(x)))


def test_nearest_value_breaks_ties_and_neighbours_of_ties_like_the_codes() -> None:
    codes = torch.arange(127, dtype=torch.uint8)
    values = decode_e4m3(codes)
    midpoints = (values[:-1] + values[1:]) / 2
    around = torch.cat([midpoints, midpoints.nextafter(torch.tensor(1e9)), midpoints.nextafter(torch.tensor(-1e9))])
    x = torch.cat([around, -around])
    assert torch.equal(nearest_e4m3(x), decode_e4m3(encode_e4m3(x)))


def test_scale_value_is_the_decoded_scale_byte() -> None:
    x = every_finite_bf16()
    t = x[(x >= 2.0**-126) & (x <= 2.0**126)]
    assert torch.equal(power_of_two_scale(t), decode_e8m0(power_of_two_at_least(t)))


def test_rounded_groups_equal_quantised_groups() -> None:
    generator = torch.Generator().manual_seed(5)
    for exponent in (-30, -14, -3, 0, 9, 60):
        x = (torch.randn(64, 96, generator=generator) * 2.0**exponent).to(torch.bfloat16)
        x[0] = 0
        x[1, 3] *= 1000
        assert torch.equal(round_fp8_32(x), quantize_fp8_32(x).dequantize(torch.float64))


def test_nan_and_infinity_stay_visible() -> None:
    x = torch.ones(2, 64)
    x[0, 5], x[1, 40] = torch.nan, torch.inf
    rounded = round_fp8_32(x)
    assert rounded[0, :32].isnan().any()
    assert rounded[1, 32:].isnan().any()
    assert torch.equal(rounded[0, 32:], torch.ones(32, dtype=torch.float64))


def test_nearest_e2m1_value_is_the_decoded_nearest_code_with_its_ties_and_their_neighbours() -> None:
    values = decode_e2m1(torch.arange(8, dtype=torch.uint8))
    midpoints = (values[:-1] + values[1:]) / 2
    around = torch.cat([midpoints, midpoints.nextafter(torch.tensor(1e9)), midpoints.nextafter(torch.tensor(-1e9))])
    finite = every_finite_bf16()
    x = torch.cat([around, -around, finite])
    assert torch.equal(nearest_e2m1(x), decode_e2m1(encode_e2m1(x)))


@pytest.mark.parametrize(
    ("fake", "quantize"),
    [(fake_fp8_32, quantize_fp8_32), (fake_fp4_32, quantize_fp4_32), (fake_fp4_16, quantize_fp4_16)],
)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_values_of_rounded_rows_are_those_of_their_codes(
    fake: Callable[[torch.Tensor], torch.Tensor],
    quantize: Callable[[torch.Tensor], Quantized],
    dtype: torch.dtype,
) -> None:
    generator = torch.Generator().manual_seed(11)
    for exponent in (-120, -40, -12, -9, -6, -3, 0, 4, 9, 60, 120):
        x = (torch.randn(128, 96, generator=generator) * 2.0**exponent).to(dtype)
        x[0] = 0
        x[1, 3] *= 64
        assert torch.equal(fake(x), quantize(x).dequantize(dtype)), exponent
    singles = every_finite_bf16().view(-1, 1).repeat(1, 32).to(dtype)  # every number as the largest of its group
    assert torch.equal(fake(singles), quantize(singles).dequantize(dtype))


@pytest.mark.parametrize("exponent", [-13, 0, 17])
def test_the_scale_of_a_group_steps_up_right_behind_448_for_every_fp32_mantissa(exponent: int) -> None:
    mantissas = torch.arange(0, 1 << 23, 997, dtype=torch.int32)
    edge = (3 << 21) + torch.arange(-3, 4, dtype=torch.int32)  # 1.75 and its neighbours
    largest = (torch.cat([mantissas, edge]) | (127 << 23)).view(torch.float32) * 2.0**exponent
    x = largest.view(-1, 1).repeat(1, 32) * torch.linspace(-1, 1, 32)
    assert torch.equal(round_fp8_32(x), quantize_fp8_32(x).dequantize(torch.float64))


def test_a_group_below_the_floor_and_one_at_the_end_of_fp32_are_rounded_like_their_codes() -> None:
    x = torch.stack([torch.linspace(0, 9e-5, 32), torch.linspace(-1, 1, 32) * 3.3e38])
    assert torch.equal(round_fp8_32(x), quantize_fp8_32(x).dequantize(torch.float64))
