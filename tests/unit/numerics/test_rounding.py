import itertools
import json
import math
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flash41.errors import KernelError
from flash41.numerics.rounding import encode_e2m1, encode_e4m3, pack_fp4, power_of_two_at_least, unpack_fp4
from oracles.number_formats import E2M1_MAGNITUDES, E4M3_MAGNITUDES, nearest_code

VECTORS = json.loads((Path(__file__).parents[2] / "data/numerics/number_formats.json").read_text())
ALL_BF16 = torch.arange(65536, dtype=torch.int32).to(torch.uint16).view(torch.bfloat16).float()
ENCODERS = [
    pytest.param(encode_e4m3, E4M3_MAGNITUDES, 0x80, id="E4M3"),
    pytest.param(encode_e2m1, E2M1_MAGNITUDES, 0x8, id="E2M1"),
]
Encoder = Callable[[torch.Tensor], torch.Tensor]


def from_bits(*patterns: int) -> torch.Tensor:
    return torch.from_numpy(np.array(patterns, dtype=np.uint32).view(np.float32))


def brute_force(x: torch.Tensor, magnitudes: list[Fraction], sign: int) -> torch.Tensor:
    """Nearest of all codes in FP64, where every difference below is exact or far from a tie; even code on ties."""
    values = torch.tensor([float(value) for value in magnitudes], dtype=torch.float64)
    clamped = x.double().abs().clamp(max=float(magnitudes[-1]))
    distance = (clamped.unsqueeze(-1) - values).abs()
    nearest = distance == distance.amin(-1, keepdim=True)
    codes = torch.arange(len(magnitudes))
    order = torch.where(nearest, codes % 2 * 1000 + codes, 10_000)  # an even code before an odd one
    return (order.amin(-1) % 1000 + sign * x.signbit()).to(torch.uint8)


@pytest.mark.parametrize(("encode", "magnitudes", "sign"), ENCODERS)
def test_every_bf16_number_gets_the_nearest_code(encode: Encoder, magnitudes: list[Fraction], sign: int) -> None:
    numbers = ALL_BF16[~ALL_BF16.isnan()]
    assert numbers.numel() == 65536 - 2 * 127
    codes = encode(numbers)
    assert codes.dtype is torch.uint8
    expected = torch.cat([brute_force(part, magnitudes, sign) for part in numbers.split(8192)])
    assert torch.equal(codes, expected)


def test_every_bf16_number_up_to_448_agrees_with_the_library_in_e4m3() -> None:
    numbers = ALL_BF16[ALL_BF16.abs() <= 448]
    library = numbers.numpy().astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
    assert torch.equal(encode_e4m3(numbers), torch.from_numpy(library))


def test_every_bf16_number_up_to_6_agrees_with_the_library_in_e2m1() -> None:
    numbers = ALL_BF16[ALL_BF16.abs() <= 6]
    library = numbers.numpy().astype(ml_dtypes.float4_e2m1fn).view(np.uint8)
    assert torch.equal(encode_e2m1(numbers), torch.from_numpy(library))


@pytest.mark.parametrize(("encode", "magnitudes", "sign"), ENCODERS)
def test_every_tie_goes_to_the_even_code_and_its_neighbours_do_not(
    encode: Encoder, magnitudes: list[Fraction], sign: int
) -> None:
    ties = torch.tensor([float((low + high) / 2) for low, high in itertools.pairwise(magnitudes)])
    lower = torch.arange(len(magnitudes) - 1)
    for signed, bit in ((ties, 0), (-ties, sign)):
        assert torch.equal(encode(signed), (lower + lower % 2 + bit).to(torch.uint8))
        assert torch.equal(encode(signed.nextafter(torch.zeros(()))), (lower + bit).to(torch.uint8))
        assert torch.equal(encode(signed.nextafter(signed * math.inf)), (lower + 1 + bit).to(torch.uint8))


@pytest.mark.parametrize(("encode", "magnitudes", "sign"), ENCODERS)
def test_every_code_encodes_to_itself(encode: Encoder, magnitudes: list[Fraction], sign: int) -> None:
    values = torch.tensor([float(value) for value in magnitudes])
    codes = torch.arange(len(magnitudes), dtype=torch.uint8)
    assert torch.equal(encode(values), codes)
    assert torch.equal(encode(-values), codes | sign)


@pytest.mark.parametrize(("encode", "magnitudes", "sign"), ENCODERS)
def test_too_large_numbers_and_infinities_saturate(encode: Encoder, magnitudes: list[Fraction], sign: int) -> None:
    top = len(magnitudes) - 1
    large = torch.tensor([float(magnitudes[-1]) * 1.03, 1000.0, 3.4e38, math.inf])
    assert encode(large).tolist() == [top] * 4
    assert encode(-large).tolist() == [top | sign] * 4


@pytest.mark.parametrize(("encode", "magnitudes", "sign"), ENCODERS)
def test_subnormal_numbers_and_zeros_keep_their_sign(encode: Encoder, magnitudes: list[Fraction], sign: int) -> None:
    tiny = from_bits(0x00000000, 0x00000001, 0x0000FFFF, 0x00010000, 0x007FFFFF, 0x00800000)
    assert encode(tiny).tolist() == [0] * 6
    assert encode(-tiny).tolist() == [sign] * 6


def test_every_kind_of_nan_is_the_one_nan_of_e4m3_and_saturates_in_e2m1() -> None:
    nans = from_bits(0x7F800001, 0x7F80FFFF, 0x7FC00000, 0x7FFFFFFF, 0xFF800001, 0xFFC00000, 0xFFFFFFFF)
    assert encode_e4m3(nans).tolist() == [0x7F] * 7
    assert encode_e2m1(nans).tolist() == [7] * 7
    assert encode_e4m3(ALL_BF16[ALL_BF16.isnan()]).unique().tolist() == [0x7F]


@pytest.mark.parametrize(("encode", "magnitudes", "sign"), ENCODERS)
@settings(max_examples=60, deadline=None)
@given(patterns=st.lists(st.integers(0, 0xFFFFFFFF), min_size=1, max_size=40), near=st.integers(0x3A000000, 0x44000000))
def test_any_fp32_pattern_gets_the_code_of_exact_arithmetic(
    encode: Encoder, magnitudes: list[Fraction], sign: int, patterns: list[int], near: int
) -> None:
    x = from_bits(*patterns, near, near | 0x80000000)
    x = x[x.isfinite()]
    expected = [nearest_code(Fraction(value), magnitudes, math.copysign(1, value) < 0) for value in x.tolist()]
    assert encode(x).tolist() == expected


def test_encoding_vectors() -> None:
    for case in VECTORS["e4m3_encode"]:
        assert encode_e4m3(torch.tensor(case["x"])).item() == case["code"], case
    for case in VECTORS["e2m1_encode"]:
        assert encode_e2m1(torch.tensor(case["x"])).item() == case["code"], case


@pytest.mark.parametrize("encode", [encode_e4m3, encode_e2m1])
def test_a_number_gets_the_same_code_wherever_it_stands_and_however_many_stand_beside_it(encode: Encoder) -> None:
    x = torch.randn(71, generator=torch.Generator().manual_seed(1)) * 3
    whole = encode(x)
    for length in range(1, 70):
        for first in (0, 1, 71 - length):
            assert torch.equal(encode(x[first : first + length]), whole[first : first + length])
    assert torch.equal(encode(x[::3]), whole[::3])


def test_the_power_of_two_is_the_smallest_for_every_exponent_and_at_every_edge() -> None:
    powers = torch.arange(1, 255)
    exact = (powers.int() << 23).view(torch.float32)
    assert torch.equal(power_of_two_at_least(exact), powers.to(torch.uint8))
    below = exact[1:].nextafter(torch.zeros(()))
    assert torch.equal(power_of_two_at_least(below), powers[1:].to(torch.uint8))
    above = exact.nextafter(torch.tensor(math.inf))
    assert torch.equal(power_of_two_at_least(above), (powers + 1).to(torch.uint8))


def test_what_no_power_of_two_can_reach_becomes_the_nan_of_e8m0() -> None:
    beyond = from_bits(0x7F000001, 0x7F7FFFFF, 0x7F800000, 0x7F800001, 0x7FC00000, 0x7FFFFFFF, 0xFFC00000)
    assert power_of_two_at_least(beyond).tolist() == [255] * 7


def test_the_even_channel_lies_in_the_low_nibble() -> None:
    packing = VECTORS["packing"]
    codes = torch.tensor(packing["codes"], dtype=torch.uint8)
    assert pack_fp4(codes).tolist() == packing["bytes"]
    swapped = codes.view(-1, 2).flip(-1).flatten()
    assert pack_fp4(swapped).tolist() != packing["bytes"]


def test_every_pair_of_codes_survives_packing() -> None:
    every_byte = torch.arange(256, dtype=torch.uint8).view(4, 64)
    codes = unpack_fp4(every_byte)
    assert codes.shape == (4, 128)
    assert codes.max() == 15
    assert torch.equal(codes[0, :6], torch.tensor([0, 0, 1, 0, 2, 0], dtype=torch.uint8))
    assert torch.equal(pack_fp4(codes), every_byte)


def test_an_odd_number_of_channels_cannot_be_packed() -> None:
    with pytest.raises(KernelError, match="channels to pack: got 3, expected an even number"):
        pack_fp4(torch.zeros(2, 3, dtype=torch.uint8))
