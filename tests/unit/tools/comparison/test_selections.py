"""Selections compared as sets: equal, tied, explained by scores, or of another rule."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flash41.tools.comparison.selections import SelectionResult, Verdict, block_scores, compare_experts, compare_rows

INF = np.inf


def one_row(
    ours: list[int], theirs: list[int], scores: list[float] | None = None, others: list[float] | None = None
) -> SelectionResult:
    arrays = [None if values is None else np.array([values]) for values in (scores, others)]
    return compare_rows(np.array([ours]), np.array([theirs]), *arrays)


def test_the_order_of_a_selection_does_not_matter() -> None:
    assert one_row([1, 2, -1], [2, -1, 1]).verdicts.tolist() == [Verdict.EQUAL]


def test_equal_scores_make_a_tie() -> None:
    scores = [0.5, 0.0, 0.0, -1.0]
    assert one_row([0, 1], [0, 2], scores, scores).verdicts.tolist() == [Verdict.TIE]
    assert one_row([0, 1], [0, 2], scores).verdicts.tolist() == [Verdict.TIE]


def test_scores_that_moved_explain_an_exchange_as_far_as_they_moved() -> None:
    ours, moved = [0.5, 0.21, 0.2, -1.0], [0.5, 0.2, 0.21, -1.0]
    assert one_row([0, 1], [0, 2], ours, moved).verdicts.tolist() == [Verdict.FOLLOWS]
    found = one_row([0, 1], [0, 3], ours, moved)
    assert found.verdicts.tolist() == [Verdict.REAL]
    assert found.first_real == "row 0: 1 became 3: margin 1.21 where the scores moved by 0.01"


def test_without_scores_nothing_can_be_said() -> None:
    assert one_row([0, 1], [0, 2]).verdicts.tolist() == [Verdict.UNKNOWN]
    assert one_row([0, 1], [0, 2], [3.0, 2.0, 1.0]).verdicts.tolist() == [Verdict.UNKNOWN]


def test_rows_that_nobody_may_see_are_real() -> None:
    found = one_row([0], [1], [0.0, -INF], [0.0, 5.0])
    assert found.verdicts.tolist() == [Verdict.REAL]
    assert "1 not visible" in found.first_real
    assert "beyond the 2 rows" in one_row([0], [7], [0.0, 1.0], [0.0, 1.0]).first_real


def test_another_count_is_real() -> None:
    scores = [3.0, 2.0, 1.0]
    assert "1 members against 0" in one_row([0, 1], [0, -1], scores, scores).first_real


def test_candidate_blocks_explain_an_exchange_only_where_they_differ() -> None:
    ours, theirs, scores = np.array([[0, 1]]), np.array([[0, 5]]), np.array([[9.0, 8, 7, 6, 5, 8.5]])
    same, other = np.array([[0, 1]]), np.array([[0, 2]])
    ignored = compare_rows(ours, theirs, scores, scores, (same, same, 2))
    assert ignored.verdicts.tolist() == [Verdict.REAL]
    assert "5 outside the candidate blocks" in ignored.first_real
    assert compare_rows(ours, theirs, scores, scores, (same, other, 2)).verdicts.tolist() == [Verdict.FOLLOWS]


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_top_k_of_any_moved_scores_is_never_real(data: st.DataObject) -> None:
    values = st.lists(st.integers(-4, 4).map(float), min_size=6, max_size=6)
    ours, moves = data.draw(values), data.draw(values)
    theirs = [a + 0.3 * b for a, b in zip(ours, moves, strict=True)]
    best = [sorted(np.argsort(-np.array(scores), kind="stable")[:3].tolist()) for scores in (ours, theirs)]
    assert one_row(best[0], best[1], ours, theirs).verdicts[0] <= Verdict.FOLLOWS


def test_a_block_is_as_good_as_its_best_row_and_the_newest_is_pinned() -> None:
    scores = np.array([[1.0, 4.0, 2.0, -INF, -INF], [1.0, 4.0, 2.0, 3.0, 0.0], [-INF] * 5])
    assert block_scores(scores, 2).tolist() == [[4.0, INF, -INF], [4.0, 3.0, INF], [-INF] * 3]


def routed(logits: np.ndarray, bias: np.ndarray, k: int = 3) -> np.ndarray:
    return np.sort(np.argsort(-(np.sqrt(np.logaddexp(0, logits)) + bias), axis=1, kind="stable")[:, :k], axis=1)


def test_experts_that_follow_moved_logits_are_explained() -> None:
    draw = np.random.default_rng(5)
    logits, bias = draw.normal(size=(400, 16)), draw.normal(size=16) / 3
    moved = logits + draw.normal(size=logits.shape) * 1e-2
    found = compare_experts(routed(logits, bias), routed(moved, bias), logits, moved)
    assert (found.verdicts == Verdict.FOLLOWS).sum() > 0
    assert not (found.verdicts == Verdict.REAL).any()
    assert found.jaccard > 0.9


@pytest.mark.parametrize("noise", [0.0, 1e-4, 1e-2])
def test_experts_chosen_with_another_bias_are_real(noise: float) -> None:
    draw = np.random.default_rng(6)
    logits, bias = draw.normal(size=(200, 16)), draw.normal(size=16) / 3
    moved = logits + draw.normal(size=logits.shape) * noise
    found = compare_experts(routed(logits, bias), routed(moved, bias * 0), logits, moved)
    assert (found.verdicts == Verdict.REAL).sum() > 50
    assert found.first_real.startswith("row ")


def test_experts_without_logits_are_unknown() -> None:
    assert compare_experts(np.array([[1, 2]]), np.array([[1, 3]])).verdicts.tolist() == [Verdict.UNKNOWN]
