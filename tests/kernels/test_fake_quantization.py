"""Fake quantisation of rows: elementwise arithmetic without sums, so every backend gives the same bits."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from flash41.kernels.interface import Kernels
from flash41.numerics.scaled import fake_fp4_16, fake_fp4_32, fake_fp8_32
from helpers.tensors import assert_rows_stand_alone, normal

OPERATIONS = {"fake_fp8_32": fake_fp8_32, "fake_fp4_32": fake_fp4_32, "fake_fp4_16": fake_fp4_16}
each_operation = pytest.mark.parametrize("name", OPERATIONS)

Operation = Callable[[Tensor], Tensor]


def every_finite_bf16() -> Tensor:
    """[rows, 32]: each number once, in company that changes from column to column."""
    bits = torch.arange(1 << 16).to(torch.int32)
    values = (bits << 16).view(torch.float32)
    values = values[values.isfinite()]
    mixed = values[torch.randperm(len(values), generator=torch.Generator().manual_seed(1))]
    return torch.cat((values, mixed))[: len(values) * 2 // 32 * 32].view(-1, 32)


@each_operation
def test_every_finite_number_reads_as_after_storage(kernels: Kernels, name: str) -> None:
    x = every_finite_bf16()
    for values in (x.bfloat16(), x * 1.0000001):
        values = values[values.isfinite().all(1)]
        assert torch.equal(getattr(kernels, name)(values), OPERATIONS[name](values))


@each_operation
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("sigma", [1e-30, 1e-6, 0.01, 1.0, 300.0, 1e20])
def test_rows_of_any_size_read_as_after_storage(kernels: Kernels, name: str, dtype: torch.dtype, sigma: float) -> None:
    x = normal(6, 3, 96, seed=1, sigma=sigma, dtype=dtype)
    got = getattr(kernels, name)(x)
    assert got.dtype is dtype
    assert torch.equal(got, OPERATIONS[name](x))


@each_operation
def test_zeros_and_their_signs_stay(kernels: Kernels, name: str) -> None:
    x = torch.zeros(2, 32)
    x[1] = -0.0
    got = getattr(kernels, name)(x)
    assert torch.equal(got.signbit(), OPERATIONS[name](x).signbit())
    assert not got.any()


@each_operation
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_what_is_not_finite_stays_visible_in_its_group_alone(kernels: Kernels, name: str, bad: float) -> None:
    x = normal(2, 96, seed=2)
    clean = getattr(kernels, name)(x)
    x[0, 40] = bad
    got = getattr(kernels, name)(x)
    if bad == bad and name == "fake_fp4_16":
        assert not torch.equal(got[0, 32:48], clean[0, 32:48])
    else:
        assert got[0, 32:64].isnan().any()
    assert torch.equal(got[0, 64:], clean[0, 64:])
    assert torch.equal(got[0, :32], clean[0, :32])
    assert torch.equal(got[1], clean[1])


@each_operation
def test_rounded_rows_stand_alone(kernels: Kernels, name: str) -> None:
    x = normal(64, 128, seed=3)
    assert_rows_stand_alone(lambda rows: getattr(kernels, name)(x[rows]))
