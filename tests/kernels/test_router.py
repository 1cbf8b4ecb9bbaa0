"""The router.  spec: moe.md section 1."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from flash41.kernels.interface import Kernels
from helpers.tensors import assert_close, assert_rows_stand_alone, normal, vectors

MOE = vectors("moe")
ROUTE_SCALE = MOE["route_scale"]


def score(logit: float) -> float:
    """FP64 sqrt(ln(1 + e^z)) without overflow."""
    return math.sqrt(max(logit, 0.0) + math.log1p(math.exp(-abs(logit))))


def expected_route(logits: list[float], bias: list[float], topk: int) -> tuple[list[int], list[float]]:
    scores = [score(logit) for logit in logits]
    ids = sorted(sorted(range(len(logits)), key=lambda e: (-(scores[e] + bias[e]), e))[:topk])
    total = sum(scores[e] for e in ids) + 1e-20
    return ids, [ROUTE_SCALE * scores[e] / total for e in ids]


@pytest.mark.parametrize("case", MOE["score"], ids=lambda case: f"logit{case['logit']}")
def test_score_vectors(kernels: Kernels, case: dict[str, float]) -> None:
    logits = torch.tensor([[case["logit"], 0.0]])
    _, weights = kernels.route(logits, torch.zeros(2), 2, 1.0)
    total = case["score"] + score(0.0)
    expected = np.array([[case["score"] / total, score(0.0) / total]])
    assert weights.isfinite().all()
    # Below -80 an FP32 implementation may flush the score to 0.
    assert_close(weights, expected, 1e-6 * expected + (expected if case["logit"] < -80 else 0.0))


@pytest.mark.parametrize("case", MOE["selection"], ids=lambda case: case["note"][:20])
def test_selection_vectors(kernels: Kernels, case: dict[str, Any]) -> None:
    ids, weights = kernels.route(torch.tensor([case["logits"]]), torch.tensor(case["bias"]), case["topk"], ROUTE_SCALE)
    assert ids.tolist() == [case["ids_sorted"]]
    assert (ids.dtype, weights.dtype) == (torch.int64, torch.float32)
    listed = dict(zip(case["ids_by_key"], case["weights"], strict=True))
    assert_close(weights, np.array([[listed[expert_id] for expert_id in case["ids_sorted"]]]), 1e-6)


def test_random_logits_route_as_written(kernels: Kernels) -> None:
    logits, bias = normal(20, 384, seed=1, sigma=3.0, dtype=torch.float32), normal(384, seed=2, dtype=torch.float32)
    ids, weights = kernels.route(logits, bias, 6, ROUTE_SCALE)
    for row in range(20):
        expected_ids, expected_weights = expected_route(logits[row].tolist(), bias.tolist(), 6)
        assert ids[row].tolist() == expected_ids
        assert_close(weights[row], np.array(expected_weights), 1e-6)


def test_a_bias_moves_the_selection_but_not_the_weights(kernels: Kernels) -> None:
    logits = torch.tensor([[-16.7, -200.0, 90.0, 1.0, 0.5]])
    bias = torch.tensor([20.0, 20.0, 0.0, 0.0, 0.0])
    plain_ids, plain = kernels.route(logits, torch.zeros(5), 3, ROUTE_SCALE)
    ids, weights = kernels.route(logits, bias, 3, ROUTE_SCALE)
    assert (plain_ids.tolist(), ids.tolist()) == ([[2, 3, 4]], [[0, 1, 2]])
    assert weights.isfinite().all()
    assert_close(weights, np.array([expected_route(logits[0].tolist(), bias.tolist(), 3)[1]]), 1e-6)
    # A bias that keeps the selection leaves every bit of the weights.
    _, same = kernels.route(logits, torch.tensor([0.0, 0.0, -5.0, 3.0, 3.0]), 3, ROUTE_SCALE)
    assert torch.equal(same, plain)


@pytest.mark.parametrize("logit", [-200.0, -1e4, -math.inf])
def test_scores_that_vanish_give_no_nan(kernels: Kernels, logit: float) -> None:
    ids, weights = kernels.route(torch.full((2, 8), logit), torch.zeros(8), 3, ROUTE_SCALE)
    assert ids.tolist() == [[0, 1, 2]] * 2
    assert_close(weights, np.zeros((2, 3)), 1e-20)


def test_scores_below_the_floor_are_not_blown_up(kernels: Kernels) -> None:
    _, weights = kernels.route(torch.full((1, 3), -16.7), torch.zeros(3), 3, ROUTE_SCALE)
    assert_close(weights, np.full((1, 3), 0.5), 1e-6)


def test_exact_ties_go_to_the_lowest_ids(kernels: Kernels) -> None:
    logits = torch.zeros(1, 384)
    logits[0, 300] = 1.0
    ids, _ = kernels.route(logits, torch.zeros(384), 6, ROUTE_SCALE)
    assert ids.tolist() == [[0, 1, 2, 3, 4, 300]]
    # The tie is one of score plus bias: the tied scores may differ.
    bias = torch.zeros(384)
    bias[:100] = -1.0
    ids, _ = kernels.route(logits, bias, 6, ROUTE_SCALE)
    assert ids.tolist() == [[100, 101, 102, 103, 104, 300]]


def test_every_token_may_have_its_own_bias(kernels: Kernels) -> None:
    logits = normal(6, 16, seed=3, dtype=torch.float32)
    text, image = normal(16, seed=4, dtype=torch.float32), torch.zeros(16)
    image[[5, 7]] = 9.0
    mask = torch.tensor([False, True, True, False, True, False])
    ids, weights = kernels.route(logits, torch.where(mask.unsqueeze(1), image, text), 3, ROUTE_SCALE)
    for row in range(6):
        alone = kernels.route(logits[row : row + 1], image if mask[row] else text, 3, ROUTE_SCALE)
        assert torch.equal(ids[row], alone[0][0])
        assert torch.equal(weights[row], alone[1][0])
        assert not mask[row] or {5, 7} <= set(ids[row].tolist())


def test_routed_rows_stand_alone(kernels: Kernels) -> None:
    logits, bias = normal(64, 384, seed=5, dtype=torch.float32), normal(384, seed=6, dtype=torch.float32)
    assert_rows_stand_alone(lambda rows: kernels.route(logits[rows], bias, 6, ROUTE_SCALE))
