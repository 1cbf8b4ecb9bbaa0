"""Pooling of a group into one row.  spec: attention.md section 10."""

import numpy as np
import pytest
import torch

from flash41.kernels.interface import Kernels
from helpers.tensors import assert_close, assert_rows_stand_alone, normal


@pytest.mark.parametrize("ratio", [1, 2, 3])
def test_each_channel_is_weighed_by_its_own_softmax(kernels: Kernels, ratio: int) -> None:
    values = normal(6, ratio, 512, seed=1, dtype=torch.float32)
    scores = normal(6, ratio, 512, seed=2, sigma=4.0, dtype=torch.float32)
    got = kernels.pool_group(values, scores)
    assert got.dtype is torch.float32
    weights = np.exp(scores.double().numpy())
    weights /= weights.sum(1, keepdims=True)
    # Exponent, weight, product and sum are FP32: a few roundings of the largest term.
    error = 8 * 2.0**-24 * np.abs(values.double().numpy()).sum(1)
    assert_close(got, (weights * values.double().numpy()).sum(1), error)


def test_a_group_of_one_is_its_value(kernels: Kernels) -> None:
    values = normal(4, 1, 32, seed=3, dtype=torch.float32)
    assert torch.equal(kernels.pool_group(values, values * 7), values[:, 0])


def test_large_scores_do_not_overflow(kernels: Kernels) -> None:
    values = torch.tensor([[[1.0], [5.0]]]).repeat(3, 1, 1)
    scores = torch.tensor([[[300.0], [-300.0]], [[-4000.0], [4000.0]], [[900.0], [900.0]]])
    assert kernels.pool_group(values, scores).flatten().tolist() == [1.0, 5.0, 3.0]


def test_no_group_gives_no_row(kernels: Kernels) -> None:
    empty = torch.zeros(0, 2, 32)
    assert kernels.pool_group(empty, empty).shape == (0, 32)


def test_pooled_groups_stand_alone(kernels: Kernels) -> None:
    values, scores = normal(64, 2, 512, seed=4, dtype=torch.float32), normal(64, 2, 512, seed=5, dtype=torch.float32)
    assert_rows_stand_alone(lambda rows: kernels.pool_group(values[rows], scores[rows]))
