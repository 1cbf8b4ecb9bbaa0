"""RMS normalisation.  spec: README.md section 4."""

import numpy as np
import pytest
import torch

from flash41.kernels.interface import Kernels
from helpers.tensors import assert_close, assert_rows_stand_alone, normal

EPS = 1e-20


def exact(x: torch.Tensor, weight: torch.Tensor, eps: float) -> np.ndarray:
    v, w = x.double().numpy(), weight.double().numpy()
    return w * v / np.sqrt((v * v).mean(-1, keepdims=True) + eps)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("weight_dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("width", [64, 512, 5120])
def test_a_norm_divides_by_the_root_mean_square(
    kernels: Kernels, dtype: torch.dtype, weight_dtype: torch.dtype, width: int
) -> None:
    x, weight = normal(5, width, seed=1, sigma=3.0, dtype=dtype), normal(width, seed=2, dtype=weight_dtype)
    got = kernels.rms_norm(x, weight, EPS)
    assert got.dtype is dtype
    expected = exact(x, weight, EPS)
    # The factor and the two products are rounded to FP32 before the one store; an FP32 mean errs by K roundings more.
    roundings = 3 if kernels.name == "reference" else 3 + width
    assert_close(got, expected, roundings * 2.0**-24 * np.abs(expected))


def test_every_channel_of_512_counts(kernels: Kernels) -> None:
    x = torch.zeros(512, 512)
    x.fill_diagonal_(3.0)
    got = kernels.rms_norm(x, torch.ones(512), EPS)
    assert_close(got.diagonal(), np.full(512, np.sqrt(512.0)), 1e-5)
    assert not (got - got.diagonal().diag()).any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_row_of_zeros_stays_zero(kernels: Kernels, dtype: torch.dtype) -> None:
    got = kernels.rms_norm(torch.zeros(2, 64, dtype=dtype), torch.ones(64), EPS)
    assert torch.equal(got, torch.zeros(2, 64, dtype=dtype))


def test_eps_does_not_hide_a_tiny_row(kernels: Kernels) -> None:
    x = torch.full((1, 64), 1e-8)
    got = kernels.rms_norm(x, torch.ones(64), EPS)
    assert_close(got, np.full((1, 64), 1 / np.sqrt(1.0 + 1e-4)), 1e-5)  # eps is a ten-thousandth of 1e-16


def test_the_weight_multiplies_in_fp32_before_the_only_store(kernels: Kernels) -> None:
    x, weight = normal(64, 64, seed=3), normal(64, seed=4)
    got = kernels.rms_norm(x, weight, EPS)
    stored_twice = (kernels.rms_norm(x, torch.ones(64), EPS) * weight).double().numpy()
    distance = np.abs(got.double().numpy() - exact(x, weight, EPS)).sum()
    assert distance < np.abs(stored_twice - exact(x, weight, EPS)).sum()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("width", [128, 5120])
def test_normed_rows_stand_alone(kernels: Kernels, dtype: torch.dtype, width: int) -> None:
    x, weight = normal(64, width, seed=5, dtype=dtype), normal(width, seed=6)
    assert_rows_stand_alone(lambda rows: kernels.rms_norm(x[rows], weight, EPS))
