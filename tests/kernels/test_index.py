"""Scores, selection and candidate blocks of the indexer.  spec: attention.md sections 11.1 to 11.4."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flash41.kernels.interface import Kernels
from flash41.numerics.scaled import fake_fp4_32
from helpers.tensors import assert_close, assert_rows_stand_alone, normal, vectors
from oracles.products import bf16

VISIBILITY = vectors("visibility")
LARGEST = torch.finfo(torch.float32).max
EXAMPLES = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
SCORE = st.sampled_from([0.0, -0.0, 1.0, 2.0, -1.0, math.nan, math.inf, -math.inf, LARGEST])


def inputs(requests: int, length: int, num_keys: int, heads: int = 8) -> tuple[torch.Tensor, ...]:
    q = fake_fp4_32(normal(requests, length, heads, 64, seed=1))
    keys = fake_fp4_32(normal(requests, num_keys, 64, seed=2))
    return q, keys, normal(requests, length, heads, seed=3, sigma=0.2, dtype=torch.float32)


def rank(score: float) -> float:
    """A score as the selection orders it: NaN as negative infinity, infinities as the largest finite numbers."""
    return -LARGEST if math.isnan(score) else min(max(score, -LARGEST), LARGEST)


def chosen(scores: list[float], allowed: list[bool], topk: int) -> list[int]:
    rows = sorted((j for j, ok in enumerate(allowed) if ok), key=lambda j: (-rank(scores[j]), j))[:topk]
    return sorted(rows) + [-1] * (topk - len(rows))


def kept_blocks(scores: list[float], visible: int, num_blocks: int, size: int) -> list[int]:
    best = {
        block: max(rank(s) for s in scores[block : min(block + size, visible)]) for block in range(0, visible, size)
    }
    pinned = (visible - 1) // size
    order = sorted(best, key=lambda first: (first // size != pinned, -best[first], first))
    return sorted(first // size for first in order[:num_blocks])


def test_a_score_is_the_weighted_sum_of_rectified_dots(kernels: Kernels) -> None:
    q, keys, weights = inputs(2, 5, 33)
    got = kernels.index_scores(q, keys, weights)
    assert got.dtype is torch.float32
    dots = np.einsum("rlhd,rnd->rlhn", q.double().numpy(), keys.double().numpy())
    terms = np.maximum(dots, 0) * weights.double().numpy()[..., None]
    assert_close(got, terms.sum(2), 16 * 2.0**-24 * np.abs(terms).sum(2))
    folded = np.maximum(np.einsum("rlhn,rlh->rln", dots, weights.double().numpy()), 0)
    assert np.abs(folded - terms.sum(2)).max() > 1.0  # folding the heads before the ReLU is another function


def test_heads_that_are_all_negative_score_exactly_zero(kernels: Kernels) -> None:
    q, keys, weights = inputs(1, 3, 20)
    got = kernels.index_scores(-q.abs(), keys.abs(), weights)
    assert not got.any()


def test_an_index_plane_without_rows_gives_no_scores(kernels: Kernels) -> None:
    q, keys, weights = inputs(2, 3, 0)
    assert kernels.index_scores(q, keys, weights).shape == (2, 3, 0)


def test_the_chain_of_the_demo_stores_every_step_as_bf16(kernels: Kernels) -> None:
    q, keys, weights = inputs(2, 5, 33)
    weights = weights.bfloat16().float()
    got = kernels.index_scores_bf16_chain(q, keys, weights)
    dots = bf16(np.einsum("rlhd,rnd->rlhn", q.double().numpy(), keys.double().numpy()))
    products = bf16(np.maximum(dots, 0) * weights.double().numpy()[..., None])
    assert np.array_equal(got.double().numpy(), bf16(products.sum(2)))
    assert not torch.equal(got, kernels.index_scores(q, keys, weights))


@pytest.mark.parametrize("operation", ["index_scores", "index_scores_bf16_chain"])
def test_scores_of_a_query_stand_alone(kernels: Kernels, operation: str) -> None:
    q, keys, weights = inputs(1, 64, 70)
    score = getattr(kernels, operation)
    assert_rows_stand_alone(lambda rows: score(q[:, rows], keys, weights[:, rows])[0])


def test_scores_of_a_request_stand_alone_beside_longer_ones(kernels: Kernels) -> None:
    q, keys, weights = inputs(3, 4, 70)
    together = kernels.index_scores(q, keys, weights)
    for request in range(3):
        part = slice(request, request + 1)
        for longest in (9, 70):
            alone = kernels.index_scores(q[part], keys[part, :longest], weights[part])
            assert torch.equal(alone[0], together[request, :, :longest])


@pytest.mark.parametrize("case", VISIBILITY["selection"], ids=lambda case: case["note"][:30])
def test_selection_vectors(kernels: Kernels, case: dict[str, Any]) -> None:
    scores, visible = torch.tensor([case["scores"]]), case["visible"]
    allowed = torch.arange(len(case["scores"])).unsqueeze(0) < visible
    if "blocks" in case:
        blocks = kernels.candidate_blocks(scores, torch.tensor([visible]), case["keep"], case["block_size"])
        assert blocks.tolist() == [case["blocks"]]
        return
    if "allowed_blocks" in case:
        assert kernels.select_rows(scores, allowed, case["topk"]).tolist() == [case["unrestricted"]]
        allowed &= kernels.inside_blocks(torch.tensor([case["allowed_blocks"]]), scores.shape[1], case["block_size"])
    assert kernels.select_rows(scores, allowed, case["topk"]).tolist() == [case["selected"]]


@EXAMPLES
@given(
    scores=st.lists(SCORE, min_size=1, max_size=40),
    topk=st.integers(1, 45),
    visible=st.integers(0, 40),
    holes=st.sets(st.integers(0, 39)),
)
def test_a_selection_is_a_sort_by_score_then_row(
    kernels: Kernels, scores: list[float], topk: int, visible: int, holes: set[int]
) -> None:
    allowed = [j < visible and j not in holes for j in range(len(scores))]
    got = kernels.select_rows(torch.tensor([scores]), torch.tensor([allowed]), topk)
    assert got.dtype is torch.int64
    assert got.tolist() == [chosen(scores, allowed, topk)]


@EXAMPLES
@given(
    scores=st.lists(SCORE, min_size=1, max_size=40),
    num_blocks=st.integers(1, 12),
    size=st.integers(1, 8),
    visible=st.integers(0, 40),
)
def test_candidate_blocks_are_a_sort_by_best_row_with_the_newest_pinned(
    kernels: Kernels, scores: list[float], num_blocks: int, size: int, visible: int
) -> None:
    visible = min(visible, len(scores))
    got = kernels.candidate_blocks(torch.tensor([scores]), torch.tensor([visible]), num_blocks, size)
    expected = kept_blocks(scores, visible, num_blocks, size)
    assert got.shape == (1, min(num_blocks, -(-len(scores) // size)))
    assert got[0, : len(expected)].tolist() == expected
    assert (got[0, len(expected) :] == -1).all()


@pytest.mark.parametrize("topk", [511, 512, 513])
def test_ties_at_exactly_zero_around_the_edge_go_to_the_smaller_rows(kernels: Kernels, topk: int) -> None:
    scores = torch.zeros(1, 3000)
    scores[0, 1::2] = -0.0
    winners = [7, 1500, 2999]
    scores[0, winners], scores[0, :5] = 1.0, -1.0
    ties = [j for j in range(5, 3000) if j not in winners]
    expected = sorted(winners + ties[: topk - 3])
    allowed = torch.ones(1, 3000, dtype=torch.bool)
    assert kernels.select_rows(scores, allowed, topk).tolist() == [expected]


def test_a_row_of_nan_scores_selects_the_first_visible_rows_and_disturbs_nobody(kernels: Kernels) -> None:
    scores = normal(3, 50, seed=4, dtype=torch.float32)
    visible = torch.tensor([50, 30, 6])
    allowed = torch.arange(50) < visible.unsqueeze(1)
    clean = kernels.select_rows(scores, allowed, 8), kernels.candidate_blocks(scores, visible, 3, 8)
    scores[1] = math.nan
    rows, blocks = kernels.select_rows(scores, allowed, 8), kernels.candidate_blocks(scores, visible, 3, 8)
    assert rows[1].tolist() == list(range(8))
    assert blocks[1].tolist() == [0, 1, 3]
    assert torch.equal(rows[[0, 2]], clean[0][[0, 2]])
    assert torch.equal(blocks[[0, 2]], clean[1][[0, 2]])


def test_one_nan_score_ranks_last(kernels: Kernels) -> None:
    scores = torch.tensor([[math.nan, -5.0, math.nan, -7.0]])
    allowed = torch.ones(1, 4, dtype=torch.bool)
    assert kernels.select_rows(scores, allowed, 2).tolist() == [[1, 3]]
    assert kernels.select_rows(scores, allowed, 3).tolist() == [[0, 1, 3]]


@pytest.mark.parametrize("score", [math.inf, LARGEST])
def test_overflowed_scores_cannot_push_out_the_newest_block(kernels: Kernels, score: float) -> None:
    scores = torch.full((1, 24), score)
    scores[0, 20:] = 0.0
    assert kernels.candidate_blocks(scores, torch.tensor([24]), 2, 4).tolist() == [[0, 5]]


@pytest.mark.parametrize("case", VISIBILITY["candidate_blocks"], ids=lambda case: f"visible{case['visible']}")
def test_candidate_block_vectors(kernels: Kernels, case: dict[str, Any]) -> None:
    visible, size, most = case["visible"], 8, 2048
    num_rows = max(visible, 1)
    scores = normal(1, num_rows, seed=visible % 97, dtype=torch.float32)
    newest = max(0, visible - max(case["rows_in_newest_block"], 1))
    scores[0, newest:] = -100.0  # the newest block would lose, were it not pinned
    blocks = kernels.candidate_blocks(scores, torch.tensor([visible]), most, size)
    kept = blocks[blocks >= 0]
    assert len(kept) == case["kept_blocks"]
    assert case["blocks"] - len(kept) == case["dropped_blocks"]
    if case["pinned_block"] is not None:
        assert kept[-1] == case["pinned_block"]
    inside = kernels.inside_blocks(blocks, num_rows, size)[:, :visible]
    assert int(inside.sum()) == case["min_rows_in_kept"]
    if case["dropped_blocks"] == 1:
        full = scores[0, : 8 * case["pinned_block"]].view(-1, 8).amax(1)
        assert set(range(case["blocks"])) - set(kept.tolist()) == {int(full.argmin())}


def test_rows_beyond_a_query_are_in_no_block_of_it(kernels: Kernels) -> None:
    scores = torch.arange(20.0).repeat(4, 1)  # later rows, not visible yet, score higher
    visible = torch.tensor([0, 1, 8, 11])
    blocks = kernels.candidate_blocks(scores, visible, 2, 4)
    assert blocks.tolist() == [[-1, -1], [0, -1], [0, 1], [1, 2]]
    inside = kernels.inside_blocks(blocks, 20, 4)
    assert inside.sum(1).tolist() == [0, 4, 8, 8]


def test_inside_blocks_cuts_the_last_block_at_the_last_row(kernels: Kernels) -> None:
    got = kernels.inside_blocks(torch.tensor([[0, 2, -1], [-1, -1, -1]]), 10, 4)
    assert got.nonzero().tolist() == [[0, j] for j in (0, 1, 2, 3, 8, 9)]
    assert got.shape == (2, 10)


def test_selections_stand_alone(kernels: Kernels) -> None:
    scores = normal(64, 100, seed=5, dtype=torch.float32).round(decimals=1)  # with many ties
    visible = torch.arange(64) + 20

    def select(rows: torch.Tensor) -> tuple[torch.Tensor, ...]:
        width = int(visible[rows].max())
        part, seen = scores[rows, :width], visible[rows]
        blocks = kernels.candidate_blocks(part, seen, 3, 8)
        allowed = (torch.arange(width) < seen.unsqueeze(1)) & kernels.inside_blocks(blocks, width, 8)
        return kernels.select_rows(part, allowed, 16), blocks

    assert_rows_stand_alone(select)
