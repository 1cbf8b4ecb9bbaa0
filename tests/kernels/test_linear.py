"""The four linear maps against exact sums.  spec: number-formats.md sections 6 and 8."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

from flash41.kernels.interface import Kernels
from flash41.kernels.reference.backend import ReferenceKernels
from flash41.numerics.scaled import Quantized
from helpers.tensors import (
    assert_close,
    assert_rows_stand_alone,
    dense,
    dense_weight,
    in_bands,
    normal,
    routed_weight,
    signed_codes,
)
from oracles import products as oracle

ONE, TWO_TO_THE_MINUS_9, TWO_TO_THE_8 = 0x38, 0x01, 0x78  # E4M3 codes
EXTREME_BYTES = [0, 110, 127, 254]
WEIGHTS = pytest.mark.parametrize(
    "weight", [dense_weight(96, 160, seed=3), routed_weight(96, 160, seed=4)], ids=["fp8", "fp4"]
)


@WEIGHTS
def test_a_scaled_product_follows_the_contract(kernels: Kernels, weight: Quantized) -> None:
    x = normal(7, 160, seed=1)
    quantized, w = oracle.fp8_32(oracle.numbers(x)), oracle.weight(weight)
    got = kernels.scaled_linear(x, weight)
    assert got.dtype is torch.bfloat16
    assert_close(got, quantized @ w.T, oracle.contract_error(quantized, w))
    if kernels.name == "reference":
        assert np.array_equal(oracle.numbers(got), oracle.bf16(oracle.contract(quantized, w)))


@WEIGHTS
def test_a_scaled_product_takes_any_leading_shape(kernels: Kernels, weight: Quantized) -> None:
    x = normal(2, 3, 160, seed=1)
    got = kernels.scaled_linear(x, weight)
    assert got.shape == (2, 3, 96)
    assert torch.equal(got.view(6, 96), kernels.scaled_linear(x.view(6, 160), weight))


def test_several_products_of_one_input_are_what_each_is_alone(kernels: Kernels) -> None:
    x, weights = normal(6, 160, seed=1), [dense_weight(96, 160), dense_weight(32, 160, seed=2), dense_weight(64, 160)]
    together = kernels.scaled_linears(x, weights)
    assert len(together) == 3
    for got, weight in zip(together, weights, strict=True):
        assert torch.equal(got, kernels.scaled_linear(x, weight))


@WEIGHTS
def test_a_scaled_product_of_fp32_rows_is_stored_in_fp32(kernels: Kernels, weight: Quantized) -> None:
    x = normal(5, 160, seed=2, dtype=torch.float32)
    quantized, w = oracle.fp8_32(oracle.numbers(x)), oracle.weight(weight)
    got = kernels.scaled_linear(x, weight)
    assert got.dtype is torch.float32
    assert_close(got, quantized @ w.T, oracle.contract_error(quantized, w))


@WEIGHTS
def test_rows_of_a_scaled_product_stand_alone(kernels: Kernels, weight: Quantized) -> None:
    x = normal(64, 160, seed=5)
    assert_rows_stand_alone(lambda rows: kernels.scaled_linear(x[rows], weight))


def test_rows_of_a_wide_scaled_product_stand_alone(kernels: Kernels) -> None:
    x, weight = normal(64, 1280, seed=5), dense_weight(64, 1280, seed=6)
    assert_rows_stand_alone(lambda rows: kernels.scaled_linear(x[rows], weight))


def block_weight(exponents: list[int]) -> Quantized:
    """[32, 32 * blocks]: in each K block the first channel weighs 2^e, with the sign of the code chosen below."""
    codes = torch.zeros(32, 32 * len(exponents), dtype=torch.uint8)
    codes[:, ::32] = ONE
    scales = torch.tensor([[127 + exponent for exponent in exponents]], dtype=torch.uint8)
    return dense(codes, scales)


@pytest.mark.parametrize(
    ("exponents", "signs", "total"),
    [
        ([24, 0, 24], [1, 1, -1], 0.0),  # 2^24 + 1 rounds to 2^24 in FP32
        ([24, 24, 0], [1, -1, 1], 1.0),
        ([0, 24, 24], [1, 1, -1], 0.0),
        ([24, 1, 24], [1, 1, -1], 2.0),  # 2^24 + 2 is an FP32 number
    ],
)
def test_k_blocks_are_added_in_fp32_from_the_first_to_the_last(
    kernels: Kernels, exponents: list[int], signs: list[int], total: float
) -> None:
    if kernels.name != "reference":
        pytest.skip("the order of blocks binds the reference backend only")
    x = torch.zeros(1, 96, dtype=torch.bfloat16)
    x[0, ::32] = torch.tensor(signs, dtype=torch.bfloat16)
    assert kernels.scaled_linear(x, block_weight(exponents)).unique().tolist() == [total]


def test_inside_a_k_block_nothing_is_lost(kernels: Kernels) -> None:
    if kernels.name != "reference":
        pytest.skip("exact block sums bind the reference backend only")
    codes = torch.zeros(32, 32, dtype=torch.uint8)
    codes[:, 0], codes[:, 1], codes[:, 2] = TWO_TO_THE_8, TWO_TO_THE_MINUS_9, TWO_TO_THE_8
    x = torch.zeros(1, 32, dtype=torch.bfloat16)
    x[0, 0], x[0, 1], x[0, 2] = 256.0, 2.0**-9, -256.0
    got = kernels.scaled_linear(x, dense(codes, torch.full((1, 1), 127, dtype=torch.uint8)))
    assert got.unique().tolist() == [2.0**-18]  # 2^16 + 2^-18 - 2^16


@pytest.mark.parametrize(("block", "byte"), list(enumerate(EXTREME_BYTES)))
def test_extreme_scales_in_one_tile_do_not_disturb_each_other(kernels: Kernels, block: int, byte: int) -> None:
    weight = dense(torch.full((32, 128), ONE, dtype=torch.uint8), torch.tensor([EXTREME_BYTES], dtype=torch.uint8))
    x = torch.zeros(1, 128, dtype=torch.bfloat16)
    x[0, 32 * block + 3] = -1.0
    assert kernels.scaled_linear(x, weight).unique().tolist() == [-(2.0 ** (byte - 127))]


@WEIGHTS
def test_an_outlier_channel_stays_within_the_rounding_of_its_group(kernels: Kernels, weight: Quantized) -> None:
    x = normal(16, 160, seed=7)
    x[:, 40] *= 1000.0
    values, w = oracle.numbers(x), oracle.weight(weight)
    got = kernels.scaled_linear(x, weight)
    # Rounding to E4M3 errs by 2^-4 of a normal number or by half a subnormal step of 2^-9 scales; the scale of a group
    # is below amax / 224.
    largest = np.abs(values).reshape(16, 5, 32).max(-1).repeat(32, -1)
    input_error = np.maximum(np.abs(values) / 16, largest / 224 * 2.0**-10)
    quantized = oracle.fp8_32(values)
    error = input_error @ np.abs(w).T + oracle.contract_error(quantized, w)
    assert_close(got, values @ w.T, error)
    # Against the exact product of the rounded input only the accumulation and the store are left.
    assert_close(got, quantized @ w.T, oracle.contract_error(quantized, w))
    assert np.abs(quantized - values)[:, 32:64].max() > np.abs(quantized - values)[:, :32].max()


@WEIGHTS
def test_rows_of_zeros_give_zeros(kernels: Kernels, weight: Quantized) -> None:
    for product in (kernels.scaled_linear, kernels.dequantized_linear):
        got = product(torch.zeros(3, 160, dtype=torch.bfloat16), weight)
        assert torch.equal(got, torch.zeros(3, 96, dtype=torch.bfloat16))


@WEIGHTS
def test_a_nan_stays_in_its_own_row(kernels: Kernels, weight: Quantized) -> None:
    x = normal(3, 160, seed=8)
    clean = kernels.scaled_linear(x, weight)
    x[1, 77] = math.nan
    got = kernels.scaled_linear(x, weight)
    assert got[1].isnan().all()
    assert torch.equal(got[[0, 2]], clean[[0, 2]])


def test_weights_that_differ_only_in_their_scales_are_different_weights(kernels: Kernels) -> None:
    codes, x = signed_codes(32, 64), normal(2, 64, seed=9)
    small = dense(codes, torch.full((1, 2), 120, dtype=torch.uint8))
    large = dense(codes, torch.full((1, 2), 121, dtype=torch.uint8))
    for product in (kernels.scaled_linear, kernels.dequantized_linear):
        assert torch.equal(product(x, small) * 2, product(x, large))


@WEIGHTS
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_dequantized_product_leaves_the_input_alone(kernels: Kernels, weight: Quantized, dtype: torch.dtype) -> None:
    x = normal(7, 160, seed=10, dtype=dtype)
    values, w = oracle.numbers(x), oracle.weight(weight)
    got = kernels.dequantized_linear(x, weight)
    assert got.dtype is dtype
    # Any order of FP32 additions stays within K roundings of the sum of magnitudes.
    error = 0.0 if kernels.name == "reference" else 160 * 2.0**-24 * (np.abs(values) @ np.abs(w).T)
    assert_close(got, values @ w.T, error + 2.0**-50 * (np.abs(values) @ np.abs(w).T))
    assert_rows_stand_alone(lambda rows: kernels.dequantized_linear(normal(64, 160, dtype=dtype)[rows], weight))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("weight_dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("out_dtype", [torch.bfloat16, torch.float32])
def test_a_plain_product_is_rounded_once_to_fp32_and_then_stored(
    kernels: Kernels, dtype: torch.dtype, weight_dtype: torch.dtype, out_dtype: torch.dtype
) -> None:
    x, weight = normal(6, 320, seed=11, dtype=dtype), normal(24, 320, seed=12, dtype=weight_dtype)
    got = kernels.linear(x, weight, out_dtype)
    assert got.dtype is out_dtype
    a, b = oracle.numbers(x), oracle.numbers(weight)
    exact = np.array([[math.fsum(row * column) for column in b] for row in a])
    assert_close(got, exact, 320 * 2.0**-24 * (np.abs(a) @ np.abs(b).T))
    if kernels.name == "reference":
        expected = oracle.bf16(exact) if out_dtype is torch.bfloat16 else exact.astype(np.float32)
        assert np.array_equal(oracle.numbers(got), expected.astype(np.float64))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_rows_of_a_plain_product_stand_alone(kernels: Kernels, dtype: torch.dtype) -> None:
    x, weight = normal(64, 512, seed=13, dtype=dtype), normal(40, 512, seed=14, dtype=dtype)
    assert_rows_stand_alone(lambda rows: kernels.linear(x[rows], weight, torch.float32))


def test_a_changed_weight_is_not_remembered(kernels: Kernels) -> None:
    x = normal(2, 64, seed=15)
    for seed in range(4):
        weight = normal(8, 64, seed=seed)
        expected = oracle.numbers(x) @ oracle.numbers(weight).T
        assert_close(kernels.linear(x, weight, torch.float32), expected, 1e-5)


@pytest.mark.parametrize("make", [dense_weight, routed_weight])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_each_group_of_a_grouped_product_has_its_own_matrix(
    kernels: Kernels, dtype: torch.dtype, make: Callable[..., Quantized]
) -> None:
    x, weights = normal(5, 4, 128, seed=16, dtype=dtype), [make(64, 128, seed=17 + group) for group in range(4)]
    got = kernels.grouped_linear(x, weights)
    assert got.dtype is dtype
    a, b = oracle.numbers(x), [oracle.weight(weight) for weight in weights]
    exact = np.stack([a[:, group] @ b[group].T for group in range(4)], 1)
    error = 128 * 2.0**-24 * np.stack([np.abs(a[:, group]) @ np.abs(b[group]).T for group in range(4)], 1)
    assert_close(got, exact, error)
    alone = torch.stack([kernels.dequantized_linear(x[:, group], weight) for group, weight in enumerate(weights)], 1)
    assert torch.equal(got, alone)
    big = normal(64, 4, 128, seed=18, dtype=dtype)
    assert_rows_stand_alone(lambda rows: kernels.grouped_linear(big[rows], weights))


def test_the_exact_weight_is_the_bf16_weight(kernels: Kernels) -> None:
    # `wo_a` is said to be dequantised to BF16: nothing is lost by multiplying its codes and scales as they are.
    weight, x = dense_weight(64, 128, seed=19), normal(3, 2, 128, seed=20)
    assert torch.equal(weight.dequantize(torch.bfloat16).float(), weight.dequantize())
    got = kernels.grouped_linear(x, [weight, weight])
    plain = kernels.linear(x, weight.dequantize(torch.bfloat16), torch.bfloat16)
    difference = (got - plain).abs().double().numpy()
    assert (difference <= 2.0**-7 * plain.abs().double().numpy()).all()  # at most one rounding apart


@pytest.mark.parametrize("make", [dense_weight, routed_weight])
@pytest.mark.parametrize("count", [1, 6, 40])
def test_products_with_weights_in_bands_have_the_same_bits(
    kernels: Kernels, count: int, make: Callable[..., Quantized]
) -> None:
    # Levels that read no bands leave them to the reference.
    other, rows = kernels if kernels.reads_bands else ReferenceKernels(), make(96, 320, seed=22)
    bands, pairs = in_bands(rows), [make(64, 128, seed=seed) for seed in (23, 24)]
    for dtype in (torch.bfloat16, torch.float32):
        x = normal(count, 320, seed=21, dtype=dtype)
        assert torch.equal(kernels.scaled_linear(x, bands), other.scaled_linear(x, rows))
        assert torch.equal(kernels.dequantized_linear(x, bands), other.dequantized_linear(x, rows))
        assert torch.equal(kernels.scaled_linear(x, bands.slice_rows(32, 64)), other.scaled_linear(x, rows)[:, 32:64])
        grouped = x[:, :256].reshape(count, 2, 128)
        got = kernels.grouped_linear(grouped, [in_bands(one) for one in pairs])
        assert torch.equal(got, other.grouped_linear(grouped, pairs))
