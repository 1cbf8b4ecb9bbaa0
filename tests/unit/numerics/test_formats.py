import json
import math
from fractions import Fraction
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import torch

from flash41.numerics import formats
from oracles.number_formats import E2M1_MAGNITUDES, E4M3_MAGNITUDES, value_of

VECTORS = json.loads((Path(__file__).parents[2] / "data/numerics/number_formats.json").read_text())
DTYPES = [torch.float32, torch.float64, torch.bfloat16]
BYTES = torch.arange(256, dtype=torch.uint8)
NIBBLES = torch.arange(16, dtype=torch.uint8)


def same(actual: torch.Tensor, expected: list[float]) -> bool:
    """Equal in value and in the sign of zeros; NaN equals NaN."""
    wide, wanted = actual.double(), torch.tensor(expected, dtype=torch.float64)
    zeros = wanted == 0
    return torch.equal(wide.nan_to_num(nan=-999.0), wanted.nan_to_num(nan=-999.0)) and torch.equal(
        wide[zeros].signbit(), wanted[zeros].signbit()
    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_e4m3_code_is_the_number_of_the_vectors_in_every_dtype(dtype: torch.dtype) -> None:
    decoded = formats.decode_e4m3(BYTES, dtype)
    assert decoded.dtype is dtype
    assert same(decoded, [math.nan if value is None else float(value) for value in VECTORS["e4m3_decode"]])


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_e4m3_code_agrees_with_exact_fractions(dtype: torch.dtype) -> None:
    codes = [code for code in range(256) if code & 0x7F != 0x7F]
    decoded = formats.decode_e4m3(torch.tensor(codes, dtype=torch.uint8), dtype).double()
    assert [Fraction(value) for value in decoded.tolist()] == [value_of(code, E4M3_MAGNITUDES) for code in codes]
    assert formats.decode_e4m3(torch.tensor([0x7F, 0xFF], dtype=torch.uint8), dtype).isnan().all()


def test_every_e4m3_and_e8m0_code_agrees_with_two_libraries() -> None:
    for ours, library, framework in [
        (formats.decode_e4m3, ml_dtypes.float8_e4m3fn, torch.float8_e4m3fn),
        (formats.decode_e8m0, ml_dtypes.float8_e8m0fnu, torch.float8_e8m0fnu),
    ]:
        decoded = ours(BYTES)
        assert same(decoded, BYTES.numpy().view(library).astype(np.float64).tolist())
        assert same(decoded, BYTES.view(framework).double().tolist())


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_e2m1_code_is_exact_and_code_8_is_minus_zero(dtype: torch.dtype) -> None:
    decoded = formats.decode_e2m1(NIBBLES, dtype)
    assert decoded.dtype is dtype
    assert decoded.tolist() == VECTORS["e2m1_decode"]
    assert [Fraction(value) for value in decoded.tolist()] == [value_of(code, E2M1_MAGNITUDES) for code in range(16)]
    assert decoded.signbit().tolist() == [False] * 8 + [True] * 8


def test_every_e2m1_code_agrees_with_the_library() -> None:
    assert same(formats.decode_e2m1(NIBBLES), NIBBLES.numpy().view(ml_dtypes.float4_e2m1fn).astype(np.float64).tolist())


def test_a_code_above_15_is_no_e2m1_code() -> None:
    with pytest.raises(IndexError):
        formats.decode_e2m1(torch.tensor([16], dtype=torch.uint8))


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_packed_byte_gives_its_low_nibble_first(dtype: torch.dtype) -> None:
    decoded = formats.decode_packed_e2m1(BYTES, dtype)
    assert decoded.dtype is dtype
    assert same(decoded[0::2], formats.decode_e2m1(BYTES & 0xF, torch.float64).tolist())
    assert same(decoded[1::2], formats.decode_e2m1(BYTES >> 4, torch.float64).tolist())
    assert not same(decoded[0::2], formats.decode_e2m1(BYTES >> 4, torch.float64).tolist())


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_e8m0_byte_is_a_power_of_two_down_to_the_subnormal_one(dtype: torch.dtype) -> None:
    decoded = formats.decode_e8m0(BYTES, dtype)
    assert decoded.dtype is dtype
    assert same(decoded, [math.ldexp(1.0, byte - 127) for byte in range(255)] + [math.nan])


def test_e8m0_vectors() -> None:
    for case in VECTORS["e8m0_decode"]:
        value = formats.decode_e8m0(torch.tensor([case["byte"]], dtype=torch.uint8)).item()
        assert math.isnan(value) if case["value"] is None else value == case["value"]


def test_e8m0_byte_0_is_not_what_shifting_into_the_exponent_field_gives() -> None:
    shifted = (BYTES.int() << 23).view(torch.float32)
    decoded = formats.decode_e8m0(BYTES)
    assert torch.equal(decoded[1:255], shifted[1:255])
    assert shifted[0] == 0
    assert decoded[0] == 2.0**-127


@pytest.mark.parametrize("decode", [formats.decode_e4m3, formats.decode_e8m0, formats.decode_packed_e2m1])
@pytest.mark.parametrize("shape", [(7,), (0, 4), (2, 3, 4), (1, 1)])
def test_any_leading_shape_decodes_code_by_code(decode, shape: tuple[int, ...]) -> None:
    codes = torch.arange(math.prod(shape), dtype=torch.uint8).reshape(shape)
    per_code = 2 if decode is formats.decode_packed_e2m1 else 1
    decoded = decode(codes)
    assert decoded.shape == (*shape[:-1], shape[-1] * per_code)
    assert torch.equal(decoded.flatten(), decode(codes.flatten()))


def test_a_strided_view_decodes_like_its_copy() -> None:
    codes = BYTES.reshape(16, 16)[:, ::3].t()
    assert torch.equal(formats.decode_e4m3(codes).nan_to_num(), formats.decode_e4m3(codes.contiguous()).nan_to_num())


def test_decoded_tensors_share_no_memory_with_the_tables() -> None:
    formats.decode_e4m3(BYTES).zero_()
    formats.decode_packed_e2m1(BYTES).zero_()
    assert formats.decode_e4m3(BYTES)[0x7E] == formats.E4M3_MAX
    assert formats.decode_packed_e2m1(BYTES)[14] == formats.E2M1_MAX
