from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flash41.engine.image_rows import image_mask, image_rows, step_mask
from flash41.engine.plan import PlannedImage, PlannedSpan, StepPlan
from flash41.errors import ProtocolError

FIRST = PlannedImage(identity=b"a" * 32, start=2, num_rows=4)
SECOND = PlannedImage(identity=b"b" * 32, start=9, num_rows=3)
ROWS = {FIRST.identity: torch.arange(4.0).view(4, 1), SECOND.identity: torch.arange(10.0, 13.0).view(3, 1)}
LENGTH, LOOK_BACK = 14, 3


def span(start: int, end: int, images: tuple[PlannedImage, ...] = (FIRST, SECOND), slot: int = 0) -> PlannedSpan:
    return PlannedSpan(
        request_id=slot,
        slot=slot,
        start=start,
        ids=tuple(range(start, end)),
        history=tuple(range(max(0, start - LOOK_BACK), start)),
        samples=True,
        images=images,
    )


def test_a_mask_covers_history_and_rows() -> None:
    assert image_mask(span(0, 4)).tolist() == [False, False, True, True]
    assert image_mask(span(5, 10)).tolist() == [True, True, True, True, False, False, False, True]
    assert image_mask(span(13, 14)).tolist() == [True, True, False, False]
    assert image_mask(span(3, 5, ())).tolist() == [False] * 5


def test_an_image_ends_behind_its_last_row() -> None:
    assert (FIRST.end, SECOND.end) == (6, 12)


def test_rows_of_all_spans_come_in_their_order() -> None:
    plan = StepPlan(spans=(span(4, 10), span(0, 3, (), slot=1), span(10, 14, slot=2)))
    assert image_rows(plan, ROWS).flatten().tolist() == [2, 3, 10, 11, 12]
    mask = step_mask(plan)
    assert mask is not None
    assert np.flatnonzero(mask).tolist() == [0, 1, 5, 9, 10]


@pytest.mark.parametrize("plan", [StepPlan(spans=(span(0, 14, ()),)), StepPlan(spans=(span(0, 2), span(6, 9, slot=1)))])
def test_a_step_without_image_rows_has_no_mask(plan: StepPlan) -> None:
    assert step_mask(plan) is None


@settings(max_examples=60, deadline=None)
@given(cuts=st.sets(st.integers(1, LENGTH - 1)))
def test_any_split_gives_every_row_once(cuts: set[int]) -> None:
    edges = [0, *sorted(cuts), LENGTH]
    plans = [StepPlan(spans=(span(start, end),)) for start, end in pairwise(edges)]
    found = [image_rows(plan, ROWS) for plan in plans if step_mask(plan) is not None]
    assert torch.cat(found).flatten().tolist() == [0, 1, 2, 3, 10, 11, 12]
    for plan in plans:
        mask = step_mask(plan)
        num_rows = 0 if mask is None else int(mask.sum())
        assert num_rows == (0 if mask is None else len(image_rows(plan, ROWS)))


@pytest.mark.parametrize(
    ("rows", "got"), [({}, "'none'"), ({FIRST.identity: torch.zeros(5, 1)}, "5")], ids=["missing", "misshapen"]
)
def test_rows_that_nobody_encoded_are_refused_by_name(rows: dict[bytes, torch.Tensor], got: str) -> None:
    with pytest.raises(ProtocolError, match=rf"rows of image 6161616161616161 at position 2: got {got}, expected 4"):
        image_rows(StepPlan(spans=(span(0, 3),)), rows)
