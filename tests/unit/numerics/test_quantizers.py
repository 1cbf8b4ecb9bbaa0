"""The four quantisers of flash41.numerics.scaled and their round trips."""

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flash41.errors import KernelError
from flash41.numerics.formats import decode_e4m3
from flash41.numerics.rounding import encode_e2m1, unpack_fp4
from flash41.numerics.scaled import (
    ElementFormat,
    Quantized,
    ScaleFormat,
    fake_fp4_16,
    fake_fp4_32,
    fake_fp8_32,
    quantize_fp4_16,
    quantize_fp4_32,
    quantize_fp8_32,
    quantize_fp8_row,
)
from oracles import number_formats as oracle

VECTORS = json.loads((Path(__file__).parents[2] / "data/numerics/number_formats.json").read_text())
RULES = {"FP8/32": quantize_fp8_32, "FP4/32": quantize_fp4_32, "FP4/16": quantize_fp4_16}
QUANTIZERS = [quantize_fp8_32, quantize_fp4_32, quantize_fp4_16, quantize_fp8_row]
POWER_OF_TWO = [quantize_fp8_32, quantize_fp4_32, quantize_fp8_row]
POSITIVE_BF16 = torch.arange(1, 0x7F80, dtype=torch.int32).to(torch.uint16).view(torch.bfloat16)
Quantizer = Callable[[torch.Tensor], Quantized]


def normal(*shape: int, sigma: float = 1.0, seed: int = 0) -> torch.Tensor:
    return (torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * sigma).bfloat16()


def logical_codes(q: Quantized) -> torch.Tensor:
    return unpack_fp4(q.codes) if q.element is ElementFormat.E2M1 else q.codes


def same(a: Quantized, b: Quantized) -> bool:
    return torch.equal(a.codes, b.codes) and torch.equal(a.scales, b.scales)


@pytest.mark.parametrize("case", VECTORS["groups"], ids=lambda case: f"{case['rule']}-{case['kind']}")
def test_group_vectors(case: dict[str, object]) -> None:
    q = RULES[case["rule"]](torch.tensor(case["x"], dtype=torch.bfloat16))
    assert q.scales.tolist() == [case["scale_byte"] if "scale_byte" in case else case["scale_code"]]
    assert logical_codes(q).tolist() == case["codes"]
    assert q.codes.tolist() == case.get("packed", case["codes"])
    assert q.dequantize().tolist() == case["values"]


@pytest.mark.parametrize(
    ("name", "quantize", "channels"), [("fp8_32", quantize_fp8_32, 32), ("fp4_32", quantize_fp4_32, 32)]
)
def test_power_of_two_scale_vectors(name: str, quantize: Quantizer, channels: int) -> None:
    for case in VECTORS[f"{name}_scale"]:
        x = torch.zeros(channels)
        x[5] = -case["amax"]
        assert quantize(x).scales.tolist() == [case["scale_byte"]], case


def test_e4m3_scale_vectors() -> None:
    for case in VECTORS["fp4_16_scale"]:
        x = torch.zeros(16)
        x[3] = case["amax"]
        q = quantize_fp4_16(x)
        assert q.scales.tolist() == [case["scale_code"]], case
        assert q.scale_values().tolist() == [case["scale"]]
        assert logical_codes(q)[3] == case["code_of_amax"]
        assert q.dequantize()[3] == case["value_of_amax"]


def test_every_tie_goes_to_the_even_code_under_every_e4m3_scale() -> None:
    scales = decode_e4m3(torch.arange(1, 0x7F, dtype=torch.uint8)).unsqueeze(1)
    ties = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0]).repeat(2)
    x = (ties * scales).bfloat16()
    assert torch.equal(x.float(), ties * scales)
    q = quantize_fp4_16(x)
    assert torch.equal(q.scale_values(), scales)
    assert logical_codes(q).unique(dim=0).tolist() == [[0, 2, 2, 4, 4, 6, 6, 7] * 2]
    # The reciprocal of a scale is not exact and would miss some of the ties.
    assert not torch.equal(encode_e2m1(x * (1 / scales)), logical_codes(q))


def test_rows_have_the_bytes_of_the_vectors() -> None:
    sizes = VECTORS["byte_counts"]
    assert quantize_fp4_16(normal(512)).num_bytes == sizes["main_row_fp4"]
    assert quantize_fp8_32(normal(512)).num_bytes == sizes["window_row_fp8"]
    assert quantize_fp4_32(normal(128)).num_bytes == sizes["index_row_fp4"]
    assert quantize_fp8_row(normal(128)).num_bytes == sizes["index_row_fp8"]
    assert quantize_fp8_32(normal(256)).num_bytes == sizes["engram_row"]


@pytest.mark.parametrize(
    ("quantize", "divisor", "floor", "lowest", "highest"),
    [(quantize_fp8_32, 448.0, 1e-4, 105, 247), (quantize_fp4_32, 6.0, 6 * 2.0**-126, 1, 253)],
)
def test_the_exponent_field_rule_is_exact_for_every_positive_bf16_maximum(
    quantize: Quantizer, divisor: float, floor: float, lowest: int, highest: int
) -> None:
    x = torch.zeros(POSITIVE_BF16.numel(), 32, dtype=torch.bfloat16)
    x[:, 31] = POSITIVE_BF16
    q = quantize(x)
    assert x.shape[0] == 32_639
    # Products by powers of two are exact in FP64, so "smallest 2^e with 2^e * divisor >= a" is decided exactly.
    a = POSITIVE_BF16.double().clamp(min=torch.tensor(floor).item())
    reach = q.scale_values(torch.float64)[:, 0] * divisor
    assert (reach >= a).all()
    assert (reach / 2 < a).all()
    assert (q.scales.min(), q.scales.max()) == (lowest, highest)


def test_a_maximum_of_seven_quarters_lands_exactly_on_its_power_of_two() -> None:
    for n in range(-5, 100):
        x = torch.zeros(32)
        x[0] = math.ldexp(1.75, n)
        q = quantize_fp8_32(x)
        assert q.scale_values().item() == math.ldexp(1.0, n - 8)
        assert q.codes[0] == 0x7E


@pytest.mark.parametrize("quantize", QUANTIZERS)
def test_a_group_of_zeros_reads_zero_with_the_lowest_scale(quantize: Quantizer) -> None:
    q = quantize(torch.tensor([0.0, -0.0]).repeat(32).bfloat16())
    lowest = {quantize_fp8_32: 105, quantize_fp4_32: 1, quantize_fp4_16: 1, quantize_fp8_row: 2.0**-22}[quantize]
    assert set(q.scales.tolist()) == {lowest}
    assert q.dequantize().tolist() == [0.0] * 64
    assert q.dequantize().signbit().tolist() == [False, True] * 32


def test_an_outlier_channel_costs_its_own_group_only() -> None:
    x = normal(4, 256)
    outlier = x.clone()
    outlier[:, 100] *= 1000
    for quantize, channels in [(quantize_fp8_32, 32), (quantize_fp4_32, 32), (quantize_fp4_16, 16)]:
        before, after = quantize(x).dequantize(), quantize(outlier).dequantize()
        others = torch.arange(256) // channels != 100 // channels
        assert torch.equal(before[:, others], after[:, others])
        assert (after[:, 100] / outlier[:, 100].float() - 1).abs().max() <= 0.25
    # FP8/32 still tells the small channels of the group apart; FP4 loses them.
    assert fake_fp8_32(outlier)[:, 96:128].unique().numel() > 20
    assert fake_fp4_32(outlier)[:, 101:128].unique().tolist() == [0.0]


def bf16_rows(channels: int) -> st.SearchStrategy[torch.Tensor]:
    """Rows of finite BF16 numbers: of any exponents, or all within four binades."""

    def row(patterns: bytes, lowest: int | None) -> torch.Tensor:
        bits = torch.frombuffer(bytearray(patterns), dtype=torch.uint16).int()
        exponents = (bits >> 7 & 0xFF).clamp(max=0xFE) if lowest is None else lowest + (bits >> 7 & 3)
        return (bits & 0x807F | exponents << 7).to(torch.uint16).view(torch.bfloat16)

    patterns = st.binary(min_size=2 * channels, max_size=2 * channels)
    return st.builds(row, patterns, st.none() | st.integers(0, 0xFE - 3))


@pytest.mark.parametrize(
    ("quantize", "expected", "channels"),
    [
        (quantize_fp8_32, oracle.fp8_32, 32),
        (quantize_fp4_32, oracle.fp4_32, 32),
        (quantize_fp4_16, oracle.fp4_16, 16),
    ],
)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_whole_groups_agree_with_exact_fractions(quantize, expected, channels: int, data: st.DataObject) -> None:
    x = data.draw(bf16_rows(channels))
    q = quantize(x)
    scale, codes = expected(x.tolist())
    assert q.scales.tolist() == [scale]
    assert logical_codes(q).tolist() == codes


@settings(max_examples=20, deadline=None)
@given(x=bf16_rows(64))
def test_an_index_row_agrees_with_exact_fractions(x: torch.Tensor) -> None:
    q = quantize_fp8_row(x)
    scale_byte, codes = oracle.fp8_32(x.tolist())
    assert q.scale is ScaleFormat.FP32
    assert q.scales.tolist() == [math.ldexp(1.0, scale_byte - 127)]
    assert q.codes.tolist() == codes


@pytest.mark.parametrize("quantize", QUANTIZERS)
@pytest.mark.parametrize("sigma", [1e-5, 1.0, 300.0])
def test_a_row_gets_the_same_bits_in_any_company(quantize: Quantizer, sigma: float) -> None:
    x = normal(64, 128, sigma=sigma)
    whole = quantize(x)
    for count in (1, 2, 6, 63):
        assert same(quantize(x[:count]), whole.rows(slice(0, count)))
        assert torch.equal(quantize(x[-count:]).dequantize(), whole.dequantize()[-count:])
    assert same(quantize(x.view(4, 16, 128)[2]), whole.rows(slice(32, 48)))
    assert same(quantize(x[17]), Quantized(**{**fields(whole), "codes": whole.codes[17], "scales": whole.scales[17]}))
    assert same(quantize(x[::3]), whole.rows(slice(None, None, 3)))


def fields(q: Quantized) -> dict[str, object]:
    return {"element": q.element, "scale": q.scale, "group": q.group}


@pytest.mark.parametrize(
    ("quantize", "channels"), [(quantize_fp8_32, 32), (quantize_fp4_32, 32), (quantize_fp4_16, 16)]
)
def test_a_group_gets_the_same_bits_in_a_row_of_any_width(quantize: Quantizer, channels: int) -> None:
    x = normal(channels * 40)
    whole = quantize(x)
    for first in range(0, 40, 7):
        for count in (1, 2, 3, 5, 11):
            part = quantize(x[first * channels : (first + count) * channels])
            assert torch.equal(part.scales, whole.scales[first : first + count])
            assert torch.equal(logical_codes(part), logical_codes(whole)[first * channels :][: part.shape[-1]])


@pytest.mark.parametrize("quantize", QUANTIZERS)
def test_the_input_is_left_alone_and_its_dtype_does_not_matter(quantize: Quantizer) -> None:
    x = normal(3, 64)
    wide = x.float()
    assert same(quantize(wide), quantize(x))
    assert torch.equal(wide, x.float())


@pytest.mark.parametrize("quantize", QUANTIZERS)
@pytest.mark.parametrize("bits", [0x7FC0, 0xFFC0, 0x7F81, 0xFFFF])
def test_a_nan_channel_makes_its_whole_group_nan_and_no_other(quantize: Quantizer, bits: int) -> None:
    x = normal(3, 64)
    x.view(torch.uint16)[1, 40] = bits
    q = quantize(x)
    width = q.group[1]
    hit = torch.zeros(3, 64, dtype=torch.bool)
    hit[1, 40 // width * width : (40 // width + 1) * width] = True
    assert torch.equal(q.dequantize().isnan(), hit)
    assert torch.equal(q.dequantize(torch.bfloat16).isnan(), hit)


@pytest.mark.parametrize("quantize", POWER_OF_TWO)
@pytest.mark.parametrize("infinity", [math.inf, -math.inf])
def test_an_infinite_channel_makes_its_group_nan_where_scales_are_powers_of_two(
    quantize: Quantizer, infinity: float
) -> None:
    x = normal(32)
    x[3] = infinity
    assert quantize(x).dequantize().isnan().all()


def test_an_infinite_channel_saturates_where_scales_are_e4m3() -> None:
    x = normal(16)
    x[3], x[4] = math.inf, -math.inf
    assert fake_fp4_16(x)[3:5].tolist() == [2688.0, -2688.0]


@pytest.mark.parametrize("quantize", [quantize_fp8_32, quantize_fp4_32, quantize_fp4_16])
@pytest.mark.parametrize("width", [0, 24, 33])
def test_a_width_that_leaves_part_of_a_group_is_refused(quantize: Quantizer, width: int) -> None:
    with pytest.raises(KernelError, match=f"channels to quantise: got {width}, expected a positive multiple"):
        quantize(torch.zeros(2, width))


@pytest.mark.parametrize("quantize", QUANTIZERS)
def test_no_rows_give_no_rows(quantize: Quantizer) -> None:
    assert quantize(torch.zeros(0, 64)).dequantize().shape == (0, 64)
