"""Hyper-connections: coefficients, collapse, apply.  spec: mhc.md sections 3 to 5."""

from typing import Any

import numpy as np
import pytest
import torch

from flash41.kernels.interface import Kernels
from helpers.tensors import assert_close, assert_rows_stand_alone, normal, vectors

CASES = vectors("mhc")["cases"]
STREAMS, ITERATIONS, HC_EPS, EPS = 4, 20, 1e-6, 1e-20
TOLERANCE = 1e-6


def sigmoid(z: np.ndarray) -> np.ndarray:
    return 1.0 / (1.0 + np.exp(-z))


def coefficients(m: np.ndarray, base: np.ndarray, scale: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """FP64 from the 24 values of one token, step by step."""
    pre = np.array([sigmoid(m[j] * scale[0] + base[j]) + HC_EPS for j in range(4)])
    post = np.array([2.0 * sigmoid(m[4 + j] * scale[1] + base[4 + j]) for j in range(4)])
    logits = np.array([[m[8 + 4 * j + k] * scale[2] + base[8 + 4 * j + k] for k in range(4)] for j in range(4)])
    comb = np.exp(logits - logits.max(1, keepdims=True))
    comb = comb / comb.sum(1, keepdims=True) + HC_EPS
    comb = comb / (comb.sum(0, keepdims=True) + HC_EPS)
    for _ in range(ITERATIONS - 1):
        comb = comb / (comb.sum(1, keepdims=True) + HC_EPS)
        comb = comb / (comb.sum(0, keepdims=True) + HC_EPS)
    return pre, post, comb


def mixes(kernels: Kernels, x: torch.Tensor, fn: torch.Tensor, base: torch.Tensor, scale: torch.Tensor):
    return kernels.mhc_mixes(x, fn, base, scale, ITERATIONS, HC_EPS, EPS)


def from_m(kernels: Kernels, case: dict[str, Any]):
    """Streams of ones have a statistic of 1, so one column of fn is m itself."""
    fn = torch.zeros(24, 8)
    fn[:, 5] = torch.tensor(case["m"])
    base, scale = torch.tensor(case["base"]), torch.tensor(case["scale"], dtype=torch.float32)
    return mixes(kernels, torch.ones(1, STREAMS, 2), fn, base, scale)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_coefficient_vectors(kernels: Kernels, case: dict[str, Any]) -> None:
    pre, post, comb = from_m(kernels, case)
    assert (pre.dtype, post.dtype, comb.dtype) == (torch.float32,) * 3
    assert_close(pre, np.array([case["pre"]]), TOLERANCE)
    assert_close(post, np.array([case["post"]]), TOLERANCE)
    assert_close(comb, np.array([case["comb"]]), TOLERANCE)
    assert_close(comb.double().sum(2).float(), np.array([case["row_sums"]]), TOLERANCE)
    # Column sums end at 1 - eps, which the rounding of four FP32 numbers does not hide.
    assert_close(comb.double().sum(1).float(), np.full((1, 4), 1.0 - HC_EPS), 2.0**-23)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_apply_and_collapse_vectors(kernels: Kernels, case: dict[str, Any]) -> None:
    pre, post, comb = from_m(kernels, case)
    x, y = torch.tensor([case["apply"]["x"]]), torch.tensor([case["apply"]["y"]])
    assert_close(kernels.mhc_apply(x, y, post, comb), np.array([case["apply"]["new_streams"]]), 2e-5)
    assert_close(kernels.mhc_collapse(x, pre), np.array([case["apply"]["collapse_with_pre"]]), 2e-5)


def test_an_asymmetric_comb_tells_source_from_destination(kernels: Kernels) -> None:
    case = next(case for case in CASES if case["name"] == "B")
    _, post, comb = from_m(kernels, case)
    x, y = torch.tensor([case["apply"]["x"]]), torch.tensor([case["apply"]["y"]])
    transposed = kernels.mhc_apply(x, y, post, comb.transpose(1, 2).contiguous())
    assert_close(transposed, np.array([case["apply"]["transposed_comb_gives"]]), 2e-5)
    assert (transposed - kernels.mhc_apply(x, y, post, comb)).abs().max() > 0.1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_the_projection_is_divided_by_one_statistic_over_all_streams(kernels: Kernels, dtype: torch.dtype) -> None:
    width = 96
    x = normal(5, STREAMS, width, seed=1, dtype=dtype)
    x[:, 2] *= 8  # streams of unequal size: a statistic per stream would differ
    fn = normal(24, STREAMS * width, seed=2, sigma=0.05, dtype=torch.float32)
    base, scale = normal(24, seed=3, dtype=torch.float32), torch.tensor([0.7, 1.3, 0.9])
    got = mixes(kernels, x, fn, base, scale)
    for row in range(5):
        v = x[row].double().numpy().reshape(-1)
        m = fn.double().numpy() @ v / np.sqrt((v * v).mean() + EPS)
        expected = coefficients(m, base.double().numpy(), scale.double().numpy())
        for tensor, exact in zip(got, expected, strict=True):
            assert_close(tensor[row], exact, TOLERANCE)


def test_streams_are_flattened_one_after_the_other(kernels: Kernels) -> None:
    x = torch.zeros(1, STREAMS, 2)
    x[0, 2, 1] = 1.0
    fn = torch.zeros(24, 8)
    fn[:, 5] = 1.0  # 2 * width + 1
    pre, _, _ = mixes(kernels, x, fn, torch.zeros(24), torch.ones(3))
    assert_close(pre, sigmoid(np.full((1, 4), np.sqrt(8.0))) + HC_EPS, TOLERANCE)


def test_strong_logits_leave_rows_unconverged(kernels: Kernels) -> None:
    base = torch.zeros(24)
    base[8:] = normal(16, seed=4, sigma=12.0, dtype=torch.float32)
    comb = mixes(kernels, torch.zeros(1, STREAMS, 8), torch.zeros(24, 32), base, torch.ones(3))[2]
    expected = coefficients(np.zeros(24), base.double().numpy(), np.ones(3))[2]
    assert_close(comb[0], expected, TOLERANCE)
    assert np.abs(expected.sum(1) - 1.0).max() > 1e-4


def test_streams_of_zeros_give_the_coefficients_of_the_biases(kernels: Kernels) -> None:
    x, fn = torch.zeros(2, STREAMS, 32, dtype=torch.bfloat16), normal(24, 128, dtype=torch.float32)
    pre, post, comb = mixes(kernels, x, fn, torch.zeros(24), torch.ones(3))
    assert_close(pre, np.full((2, 4), 0.500001), TOLERANCE)
    assert torch.equal(post, torch.ones(2, 4))
    assert_close(comb, np.full((2, 4, 4), 0.24999975), TOLERANCE)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_collapse_and_apply_are_sums_with_one_store(kernels: Kernels, dtype: torch.dtype) -> None:
    x, y = normal(3, STREAMS, 64, seed=5, dtype=dtype), normal(3, 64, seed=6, dtype=dtype)
    pre, post = normal(3, 4, seed=7, dtype=torch.float32), normal(3, 4, seed=8, dtype=torch.float32)
    comb = normal(3, 4, 4, seed=9, dtype=torch.float32)
    xs, ys = x.double().numpy(), y.double().numpy()
    collapsed, applied = kernels.mhc_collapse(x, pre), kernels.mhc_apply(x, y, post, comb)
    assert (collapsed.dtype, applied.dtype) == (dtype, dtype)
    weights = pre.double().numpy()
    exact = np.einsum("tj,tjd->td", weights, xs)
    assert_close(collapsed, exact, 4 * 2.0**-24 * np.einsum("tj,tjd->td", np.abs(weights), np.abs(xs)))
    c, p = comb.double().numpy(), post.double().numpy()
    exact = np.einsum("tjk,tjd->tkd", c, xs) + p[:, :, None] * ys[:, None]
    size = np.einsum("tjk,tjd->tkd", np.abs(c), np.abs(xs)) + np.abs(p[:, :, None] * ys[:, None])
    assert_close(applied, exact, 6 * 2.0**-24 * size)


def test_a_one_hot_collapse_is_the_stream_itself(kernels: Kernels) -> None:
    x = normal(3, STREAMS, 64, seed=10)
    one_hot = torch.tensor([[1.0, 0.0, 0.0, 0.0]]).repeat(3, 1)
    assert torch.equal(kernels.mhc_collapse(x, one_hot), x[:, 0])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_rows_of_the_hyper_connection_stand_alone(kernels: Kernels, dtype: torch.dtype) -> None:
    x, y = normal(64, STREAMS, 256, seed=11, dtype=dtype), normal(64, 256, seed=12, dtype=dtype)
    fn = normal(24, STREAMS * 256, seed=13, sigma=0.05, dtype=torch.float32)
    base, scale = normal(24, seed=14, dtype=torch.float32), torch.tensor([0.7, 1.3, 0.9])

    def block(rows: torch.Tensor) -> tuple[torch.Tensor, ...]:
        pre, post, comb = mixes(kernels, x[rows], fn, base, scale)
        return pre, post, comb, kernels.mhc_collapse(x[rows], pre), kernels.mhc_apply(x[rows], y[rows], post, comb)

    assert_rows_stand_alone(block)
