"""Quantisers: codes and scales are those of `numerics.scaled`, to the bit, on every backend."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from flash41.errors import KernelError
from flash41.kernels.interface import Kernels
from flash41.numerics.scaled import Quantized, quantize_fp4_16, quantize_fp4_32, quantize_fp8_32
from helpers.tensors import assert_rows_stand_alone, normal

QUANTIZERS: dict[str, Callable[[Tensor], Quantized]] = {
    "quantize_fp8_32": quantize_fp8_32,
    "quantize_fp4_32": quantize_fp4_32,
    "quantize_fp4_16": quantize_fp4_16,
}
each_quantizer = pytest.mark.parametrize("name", QUANTIZERS)


def assert_same(got: Quantized, expected: Quantized) -> None:
    assert (got.element, got.scale, got.group) == (expected.element, expected.scale, expected.group)
    assert torch.equal(got.codes, expected.codes)
    assert torch.equal(got.scales, expected.scales)


@each_quantizer
def test_every_finite_number_has_its_code(kernels: Kernels, name: str) -> None:
    bits = torch.arange(1 << 16).to(torch.int32)
    values = (bits << 16).view(torch.float32)
    values = values[values.isfinite()]
    mixed = values[torch.randperm(len(values), generator=torch.Generator().manual_seed(1))]
    x = torch.cat((values, mixed))[: len(values) * 2 // 32 * 32].view(-1, 32)
    for some in (x.bfloat16(), x * 1.0000001):
        finite = some[some.isfinite().all(1)]
        assert_same(getattr(kernels, name)(finite), QUANTIZERS[name](finite))


@each_quantizer
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("sigma", [1e-30, 1e-6, 0.01, 1.0, 300.0, 1e20])
def test_rows_of_any_size_have_their_codes(kernels: Kernels, name: str, dtype: torch.dtype, sigma: float) -> None:
    x = normal(6, 3, 96, seed=1, sigma=sigma, dtype=dtype)
    assert_same(getattr(kernels, name)(x), QUANTIZERS[name](x))


@each_quantizer
def test_zeros_keep_their_signs(kernels: Kernels, name: str) -> None:
    x = torch.zeros(2, 32)
    x[1], x[0, 3], x[1, 4] = -0.0, 1.0, 1e-9
    assert_same(getattr(kernels, name)(x), QUANTIZERS[name](x))


@each_quantizer
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_what_is_no_number_shows_as_in_the_reference(kernels: Kernels, name: str, value: float) -> None:
    x = normal(3, 64, seed=2)
    x[1, 40] = value
    assert_same(getattr(kernels, name)(x), QUANTIZERS[name](x))


@each_quantizer
def test_rows_quantise_alone(kernels: Kernels, name: str) -> None:
    x = normal(64, 64, seed=3)
    assert_rows_stand_alone(lambda rows: (lambda made: (made.codes, made.scales))(getattr(kernels, name)(x[rows])))


@each_quantizer
def test_widths_that_leave_a_part_of_a_group_are_refused(kernels: Kernels, name: str) -> None:
    with pytest.raises(KernelError, match="channels to quantise"):
        getattr(kernels, name)(torch.zeros(2, 40))


@each_quantizer
def test_no_rows_have_no_codes(kernels: Kernels, name: str) -> None:
    assert getattr(kernels, name)(torch.zeros(0, 64)).shape == (0, 64)
