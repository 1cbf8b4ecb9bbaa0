"""Rotation of the last channels.  spec: attention.md section 4."""

from typing import Any

import numpy as np
import pytest
import torch

from flash41.kernels.interface import Kernels
from helpers.tensors import assert_close, assert_rows_stand_alone, normal, vectors

ROPE = vectors("rope")


def angles(num_rows: int, pairs: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    angle = normal(num_rows, pairs, seed=seed, sigma=10.0, dtype=torch.float64)
    return angle.cos().float(), angle.sin().float()


def turned(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> np.ndarray:
    """FP64: complex product of neighbouring channels."""
    values = x.double().numpy().copy()
    width = 2 * cos.shape[-1]
    tail = values[..., -width:]
    factor = (cos.double() + 1j * sin.double()).numpy()
    factor = factor.reshape(len(factor), *[1] * (x.dim() - 2), -1)
    product = (tail[..., 0::2] + 1j * tail[..., 1::2]) * factor
    tail[..., 0::2], tail[..., 1::2] = product.real, product.imag
    return values


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("shape", [(6, 128), (6, 4, 96), (6, 64)])
def test_neighbouring_channels_turn_by_their_angle(
    kernels: Kernels, dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    x, (cos, sin) = normal(*shape, seed=1, dtype=dtype), angles(6, 32)
    got = kernels.rotate(x, cos, sin)
    assert got.dtype is dtype
    # Two products and their sum, each rounded to FP32 at the size of |a| + |b|.
    reach = np.abs(x.double().numpy()).max() * 4 * 2.0**-24
    assert_close(got, turned(x, cos, sin), reach)
    assert torch.equal(got[..., :-64], x[..., :-64])


@pytest.mark.parametrize("case", ROPE["rotation"])
def test_rotation_vectors(kernels: Kernels, case: dict[str, Any]) -> None:
    frequency = torch.tensor(ROPE["tables"][0]["f"][case["pair"]], dtype=torch.float32)
    angle = (torch.tensor([[float(case["position"])]]) * frequency).double()
    x = torch.tensor([case["x"]])
    cos, sin = angle.cos().float(), angle.sin().float()
    assert_close(kernels.rotate(x, cos, sin), np.array([case["forward"]]), 1e-6)
    assert_close(kernels.rotate(x, cos, sin, inverse=True), np.array([case["inverse"]]), 1e-6)


def test_the_inverse_turns_back(kernels: Kernels) -> None:
    x, (cos, sin) = normal(6, 4, 96, seed=2, dtype=torch.float32), angles(6, 16)
    back = kernels.rotate(kernels.rotate(x, cos, sin), cos, sin, inverse=True)
    assert_close(back, x.double().numpy(), 1e-5)


def test_pairs_are_interleaved_not_halves(kernels: Kernels) -> None:
    x = torch.tensor([[1.0, 0.0, 0.0, 0.0]])
    quarter = kernels.rotate(x, torch.tensor([[0.0, 1.0]]), torch.tensor([[1.0, 0.0]]))
    assert quarter.tolist() == [[0.0, 1.0, 0.0, 0.0]]


def test_the_angle_belongs_to_the_row_not_to_the_head(kernels: Kernels) -> None:
    x, (cos, sin) = normal(5, 3, 32, seed=3), angles(5, 16)
    got = kernels.rotate(x, cos, sin)
    for head in range(3):
        assert torch.equal(got[:, head], kernels.rotate(x[:, head], cos, sin))


def test_the_input_is_left_as_it_was(kernels: Kernels) -> None:
    x, (cos, sin) = normal(4, 64, seed=4), angles(4, 16)
    before = x.clone()
    kernels.rotate(x, cos, sin)
    assert torch.equal(x, before)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_rotated_rows_stand_alone(kernels: Kernels, dtype: torch.dtype) -> None:
    x, (cos, sin) = normal(64, 4, 96, seed=5, dtype=dtype), angles(64, 32)
    assert_rows_stand_alone(lambda rows: kernels.rotate(x[rows], cos[rows], sin[rows]))
