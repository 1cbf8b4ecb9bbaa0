"""Errors held against what comes in: the module that begins a difference is named, not those that carry it."""

import numpy as np
import pytest

from flash41.tools.comparison.files import align
from flash41.tools.comparison.judge import BF16_FLOOR, FP32_FLOOR, Judge, PointResult, Status, block_size, row_errors

DRAW = np.random.default_rng(7)
TOKENS, WIDTH = 24, 32


def chain() -> dict[str, np.ndarray]:
    names = ("embed", "L0.resid.in", "L0.attn.in", "L0.attn.q", "L0.attn.window_row", "L0.attn.out", "L0.resid.mid")
    return {name: DRAW.normal(size=(TOKENS, WIDTH)).astype(np.float32) for name in names}


def judged(
    ours: dict[str, np.ndarray], theirs: dict[str, np.ndarray], floor: object = BF16_FLOOR
) -> dict[str, PointResult]:
    return {one.point: one for one in Judge(align(ours, theirs), floor).results()}  # type: ignore[arg-type]


def off(array: np.ndarray, error: float, rows: slice = slice(None)) -> np.ndarray:
    """The array with an error of that relative size in some rows."""
    noise = DRAW.normal(size=array.shape)
    noise *= error * np.linalg.norm(array, axis=1, keepdims=True) / np.linalg.norm(noise, axis=1, keepdims=True)
    moved = array.copy()
    moved[rows] += noise[rows].astype(np.float32)
    return moved


def test_equal_traces_are_equal() -> None:
    ours = chain()
    assert {one.status for one in judged(ours, ours).values()} == {Status.EQUAL}


def test_an_error_is_charged_to_the_module_that_makes_it() -> None:
    ours = chain()
    theirs = {name: off(array, 0.3) if name in ("L0.attn.q", "L0.attn.out") else array for name, array in ours.items()}
    found = judged(ours, theirs)
    assert found["L0.attn.in"].status is Status.EQUAL
    assert found["L0.attn.q"].status is Status.DIVERGES
    assert (found["L0.attn.q"].num_beyond, found["L0.attn.q"].first_row) == (TOKENS, 0)
    assert found["L0.attn.out"].status is Status.FOLLOWS


def test_one_row_far_off_is_enough() -> None:
    ours = chain()
    found = judged(ours, ours | {"L0.attn.q": off(ours["L0.attn.q"], 0.2, slice(11, 12))})["L0.attn.q"]
    assert (found.status, found.num_beyond, found.first_row) == (Status.DIVERGES, 1, 11)


def test_roundings_alone_are_close() -> None:
    ours = chain()
    found = judged(ours, {name: off(array, 2.0**-9) for name, array in ours.items()})
    assert {one.status for one in found.values()} == {Status.CLOSE}


def test_fp32_traces_are_judged_a_thousand_times_sharper() -> None:
    ours = chain()
    theirs = ours | {"L0.attn.q": off(ours["L0.attn.q"], 2.0**-9)}
    assert judged(ours, theirs)["L0.attn.q"].status is Status.CLOSE
    assert judged(ours, theirs, FP32_FLOOR)["L0.attn.q"].status is Status.DIVERGES


def test_a_row_that_attends_to_a_wrong_row_is_explained_but_not_one_before_it() -> None:
    ours = chain()
    theirs = ours | {"L0.attn.window_row": off(ours["L0.attn.window_row"], 0.5, slice(10, 11))}
    later = theirs | {"L0.attn.out": off(ours["L0.attn.out"], 0.4, slice(15, 16))}
    assert judged(ours, later)["L0.attn.out"].status is Status.FOLLOWS
    earlier = theirs | {"L0.attn.out": off(ours["L0.attn.out"], 0.4, slice(5, 6))}
    assert judged(ours, earlier)["L0.attn.out"].first_row == 5


def test_a_selection_that_differs_excuses_its_own_row_only() -> None:
    ours = chain() | {"L0.index.selected": np.tile(np.arange(4), (TOKENS, 1))}
    selected = ours["L0.index.selected"].copy()
    selected[8] = [0, 1, 2, 9]
    found = judged(
        ours, ours | {"L0.index.selected": selected, "L0.attn.out": off(ours["L0.attn.out"], 0.6, slice(8, 9))}
    )
    assert found["L0.index.selected"].status is Status.DIVERGES
    assert found["L0.attn.out"].status is Status.FOLLOWS
    both = ours | {"L0.index.selected": selected, "L0.attn.out": off(ours["L0.attn.out"], 0.6, slice(8, 10))}
    assert judged(ours, both)["L0.attn.out"].first_row == 9


def test_hashes_of_ids_must_be_equal() -> None:
    ours = chain() | {"L1.engram.rows": np.arange(TOKENS * 2).reshape(TOKENS, 2)}
    theirs = ours | {"L1.engram.rows": ours["L1.engram.rows"] + (np.arange(TOKENS) == 3)[:, None]}
    found = judged(ours, theirs)["L1.engram.rows"]
    assert (found.status, found.first_row, found.num_beyond) == (Status.DIVERGES, 3, 1)


def test_infinities_must_stand_in_the_same_places_and_nan_is_never_close() -> None:
    ours = np.array([[1.0, -np.inf], [1.0, 2.0], [1.0, 2.0], [0.0, 0.0]])
    theirs = np.array([[1.0, -np.inf], [1.0, -np.inf], [np.nan, 2.0], [0.0, 0.0]])
    assert row_errors(ours, theirs).tolist() == [0.0, np.inf, np.inf, 0.0]


@pytest.mark.parametrize("ratio", [1, 2])
def test_groups_are_held_against_the_tokens_they_fold(ratio: int) -> None:
    ours = chain() | {"L0.attn.latent": DRAW.normal(size=(TOKENS // ratio, 8)).astype(np.float32)}
    group = 3
    folded = slice(group * ratio, (group + 1) * ratio)
    wrong = {"L0.attn.latent": off(ours["L0.attn.latent"], 0.4, slice(group, group + 1))}
    assert judged(ours, ours | wrong)["L0.attn.latent"].first_row == group
    carried = wrong | {"L0.attn.in": off(ours["L0.attn.in"], 0.4, folded)}
    assert judged(ours, ours | carried)["L0.attn.latent"].status is Status.FOLLOWS


def test_the_block_size_is_read_off_the_pinned_blocks() -> None:
    scores = np.where(np.tri(12, 12, dtype=bool), 1.0, -np.inf)
    candidates = np.arange(12)[:, None] // 3
    assert block_size(candidates, scores) == 3
    assert block_size(candidates + 1, scores) is None
