"""The Engram gate and its addition to the streams.  spec: engram.md section 4."""

import math

import numpy as np
import pytest
import torch

from flash41.kernels.interface import Kernels
from helpers.tensors import assert_close, assert_rows_stand_alone, normal

STREAMS, WIDTH, EPS = 4, 160, 1e-20


def exact_gate(x: torch.Tensor, key: torch.Tensor, q: torch.Tensor, k: torch.Tensor) -> np.ndarray:
    """FP64, one token and one stream at a time."""
    gates = np.zeros(x.shape[:2])
    width = x.shape[2]
    for t in range(x.shape[0]):
        for s in range(x.shape[1]):
            v, w = x[t, s].double().numpy(), key[t, s].double().numpy()
            dot = (v * (q[s].double().numpy() * k[s].double().numpy()) * w).sum()
            dot /= math.sqrt((v * v).mean() + EPS) * math.sqrt((w * w).mean() + EPS) * math.sqrt(width)
            logit = math.copysign(math.sqrt(max(abs(dot), 1e-6)), dot)
            gates[t, s] = 1 / (1 + math.exp(-logit))
    return gates


def inputs(num_rows: int, dtype: torch.dtype = torch.bfloat16) -> tuple[torch.Tensor, ...]:
    x, key = (normal(num_rows, STREAMS, WIDTH, seed=seed, dtype=dtype) for seed in (1, 2))
    return x, key, normal(STREAMS, WIDTH, seed=3), normal(STREAMS, WIDTH, seed=4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_gate_is_the_sigmoid_of_a_signed_root(kernels: Kernels, dtype: torch.dtype) -> None:
    x, key, q, k = inputs(6, dtype)
    got = kernels.engram_gate(x, key, q, k, EPS)
    assert got.dtype is torch.float32
    # A root turns a relative error of the dot into half of it, but cancellation may leave a dot of any size.
    assert_close(got, exact_gate(x, key, q, k), 1e-5)


def test_statistics_belong_to_one_stream_of_one_token(kernels: Kernels) -> None:
    x, key, q, k = inputs(3)
    expected = kernels.engram_gate(x, key, q, k, EPS)
    x[1, 2] *= 64.0
    key[0, 3] *= 2.0**-9
    assert_close(kernels.engram_gate(x, key, q, k, EPS), expected.double().numpy(), 1e-6)


def test_each_stream_has_its_own_gains(kernels: Kernels) -> None:
    x, key, q, k = inputs(3)
    before = kernels.engram_gate(x, key, q, k, EPS)
    k[2] = -k[2]
    after = kernels.engram_gate(x, key, q, k, EPS)
    assert_close(after[:, 2], 1.0 - before[:, 2].double().numpy(), 1e-6)
    assert torch.equal(after[:, [0, 1, 3]], before[:, [0, 1, 3]])


@pytest.mark.parametrize("zeroed", ["x", "key", "both"])
def test_rows_of_zeros_have_the_smallest_gate_logit(kernels: Kernels, zeroed: str) -> None:
    x, key, q, k = inputs(2)
    if zeroed != "key":
        x.zero_()
    if zeroed != "x":
        key.zero_()
    got = kernels.engram_gate(x, key, q, k, EPS)
    assert_close((got - 0.5).abs(), np.full((2, STREAMS), 2.5e-4), 1e-7)  # sigmoid(1e-3) - 1/2, never exactly 1/2


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_small_dot_keeps_its_sign(kernels: Kernels, sign: float) -> None:
    x, key = torch.zeros(1, STREAMS, WIDTH), torch.zeros(1, STREAMS, WIDTH)
    x[..., 0], x[..., 1], key[..., 0], key[..., 2] = 1.0, 1.0, sign * 1e-9, 1.0
    got = kernels.engram_gate(x, key, torch.ones(STREAMS, WIDTH), torch.ones(STREAMS, WIDTH), EPS)
    assert_close(got, np.full((1, STREAMS), 1 / (1 + math.exp(-sign * 1e-3))), 1e-7)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_the_value_enters_every_stream_by_its_gate(kernels: Kernels, dtype: torch.dtype) -> None:
    x, value = normal(5, STREAMS, WIDTH, seed=5, dtype=dtype), normal(5, WIDTH, seed=6, dtype=dtype)
    gate = normal(5, STREAMS, seed=7, dtype=torch.float32).sigmoid()
    got = kernels.engram_apply(x, gate, value)
    assert got.dtype is dtype
    added = gate.double().numpy()[:, :, None] * value.double().numpy()[:, None]
    exact = x.double().numpy() + added
    assert_close(got, exact, 2.0**-24 * (np.abs(added) + np.abs(exact)))


def test_a_gate_of_zero_passes_the_row_bit_for_bit(kernels: Kernels) -> None:
    x, value = normal(3, STREAMS, WIDTH, seed=8), normal(3, WIDTH, seed=9)
    x[1, 0, 0] = -0.0
    value[1, 0], value[1, 1] = math.inf, math.nan
    gate = torch.full((3, STREAMS), 0.25)
    gate[1] = 0.0
    got = kernels.engram_apply(x, gate, value)
    assert torch.equal(got[1].view(torch.int16), x[1].view(torch.int16))
    assert not torch.equal(got[0], x[0])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_engram_rows_stand_alone(kernels: Kernels, dtype: torch.dtype) -> None:
    x, key, q, k = inputs(64, dtype)
    value = normal(64, WIDTH, seed=10, dtype=dtype)

    def both(rows: torch.Tensor) -> tuple[torch.Tensor, ...]:
        gate = kernels.engram_gate(x[rows], key[rows], q, k, EPS)
        return gate, kernels.engram_apply(x[rows], gate, value[rows])

    assert_rows_stand_alone(both)
