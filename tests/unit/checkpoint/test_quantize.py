import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from flash41.checkpoint.quantize import TILE, quantize_dense, quantize_expert, quantize_table
from flash41.errors import KernelError
from flash41.numerics.scaled import ElementFormat, Quantized, ScaleFormat
from helpers.tensors import normal

EXPONENTS = st.integers(min_value=-90, max_value=100)
SEEDS = st.integers(0, 1000)


def spread(seed: int, exponent: int, num_rows: int = 64, width: int = 96) -> Tensor:
    """Values around 2^exponent with rows and channels of different size."""
    values = normal(num_rows, width, seed=seed, dtype=torch.float32)
    return values * 2.0 ** (torch.arange(num_rows) % 5).unsqueeze(1) * 2.0**exponent


def by_group(values: Tensor, rows: int, channels: int) -> Tensor:
    """[groups, elements] of a matrix cut into groups."""
    num_rows, width = values.shape
    return values.view(num_rows // rows, rows, width // channels, channels).transpose(1, 2).flatten(0, 1).flatten(1)


def assert_near(weight: Tensor, stored: Quantized, largest_code: float, half_steps: float) -> None:
    """Every value within half a step, the scale the smallest power of two under which nothing saturates."""
    rows, channels = stored.group
    exact, got = (by_group(values.double(), rows, channels) for values in (weight, stored.dequantize(torch.float64)))
    largest = exact.abs().amax(1)
    scales = stored.scale_values(torch.float64).flatten()
    assert (largest <= largest_code * scales * (1 + 2.0**-23)).all()
    assert (largest > largest_code * scales / 2 * (1 - 2.0**-23)).all()
    # The widest step of a format lies below its largest code; values under half the smallest code read 0.
    assert ((got - exact).abs() <= half_steps * scales.unsqueeze(1)).all()
    relative = (got - exact).abs() / exact.abs().clamp(min=1e-300)
    small = exact.abs() < scales.unsqueeze(1)
    assert (relative[~small] <= half_steps / largest_code * 2).all()


@given(seed=SEEDS, exponent=EXPONENTS)
@settings(max_examples=25, deadline=None)
def test_a_dense_weight_loses_no_range(seed: int, exponent: int) -> None:
    weight = spread(seed, exponent)
    stored = quantize_dense(weight)
    assert (stored.element, stored.scale, stored.group) == (ElementFormat.E4M3, ScaleFormat.E8M0, (TILE, TILE))
    assert_near(weight, stored, 448, 16)


@given(seed=SEEDS, exponent=EXPONENTS)
@settings(max_examples=25, deadline=None)
def test_an_expert_loses_no_range(seed: int, exponent: int) -> None:
    weight = spread(seed, exponent)
    stored = quantize_expert(weight)
    assert (stored.element, stored.scale, stored.group) == (ElementFormat.E2M1, ScaleFormat.E8M0, (1, TILE))
    assert stored.codes.shape == (64, 48)
    assert_near(weight, stored, 6, 1)


@given(seed=SEEDS, exponent=st.integers(min_value=-8, max_value=100))
@settings(max_examples=25, deadline=None)
def test_a_table_loses_no_range(seed: int, exponent: int) -> None:
    weight = spread(seed, exponent)
    stored = quantize_table(weight)
    assert (stored.element, stored.scale, stored.group) == (ElementFormat.E4M3, ScaleFormat.E8M0, (1, TILE))
    assert_near(weight, stored, 448, 16)


@pytest.mark.parametrize("quantize", [quantize_dense, quantize_expert, quantize_table])
@given(seed=SEEDS)
@settings(max_examples=10, deadline=None)
def test_what_is_stored_is_stored_again_without_a_change(quantize: object, seed: int) -> None:
    assert callable(quantize)
    first = quantize(spread(seed, 0))
    again = quantize(first.dequantize())
    assert torch.equal(again.dequantize(torch.float64), first.dequantize(torch.float64))


def test_a_tile_decides_its_scale_alone() -> None:
    weight = torch.ones(64, 64)
    weight[40, 5] = 448.0 * 8
    stored = quantize_dense(weight)
    # 1/448 needs 2^-8; 448 * 8 needs 2^3.
    assert stored.scale_values().tolist() == [[2.0**-8, 2.0**-8], [8.0, 2.0**-8]]
    assert torch.equal(stored.dequantize()[:32], weight[:32])
    assert stored.dequantize()[40, 5] == 448.0 * 8


@pytest.mark.parametrize("quantize", [quantize_dense, quantize_expert, quantize_table])
def test_zeros_are_stored_as_zeros_under_a_scale_that_is_a_number(quantize: object) -> None:
    assert callable(quantize)
    stored = quantize(torch.zeros(32, 64))
    assert torch.equal(stored.dequantize(), torch.zeros(32, 64))
    assert int(stored.scales.max()) < 255


@pytest.mark.parametrize("shape", [(33, 64), (32, 65), (16, 32)])
def test_a_dense_weight_of_broken_tiles_is_refused(shape: tuple[int, int]) -> None:
    with pytest.raises(KernelError, match=rf"dense weight shape: got \({shape[0]}, {shape[1]}\), expected multiples"):
        quantize_dense(torch.zeros(shape))


@pytest.mark.parametrize("quantize", [quantize_expert, quantize_table])
def test_rows_of_broken_groups_are_refused(quantize: object) -> None:
    assert callable(quantize)
    with pytest.raises(KernelError, match=r"channels to quantise: got 48, expected a positive multiple of 32"):
        quantize(torch.zeros(2, 48))
