import numpy as np
import pytest

from flash41.errors import RequestError
from flash41.tools.adapters.changes import (
    BATCHED,
    COLUMN,
    FLATTENED,
    ONE_HEAD,
    SAME,
    SELECTION,
    UNSORTED,
    Change,
    then,
)

STREAMS = np.arange(3 * 4 * 5, dtype=np.float32).reshape(3, 4, 5)


@pytest.mark.parametrize(
    ("change", "shape"),
    [
        (SAME, (3, 4, 5)),
        (BATCHED, (1, 3, 4, 5)),
        (COLUMN, (3, 4, 5, 1)),
        (ONE_HEAD, (3, 1, 4, 5)),
        (FLATTENED, (3, 20)),
        (then(FLATTENED, BATCHED), (1, 3, 20)),
        (then(BATCHED, BATCHED), (1, 1, 3, 4, 5)),
    ],
    ids=lambda value: value.name if isinstance(value, Change) else None,
)
def test_a_layout_has_its_shape_and_leads_back(change: Change, shape: tuple[int, ...]) -> None:
    theirs = change.theirs(STREAMS)
    assert theirs.shape == shape
    assert np.array_equal(change.ours(theirs), STREAMS)


def test_streams_in_one_axis_lie_one_after_the_other() -> None:
    assert FLATTENED.theirs(STREAMS)[1].tolist() == list(range(20, 40))


@pytest.mark.parametrize(
    ("change", "shape", "fault"),
    [
        (BATCHED, (2, 3), "shape with one sequence: got (2, 3), expected 1 on axis 0"),
        (COLUMN, (3, 2), "shape with a trailing axis: got (3, 2), expected 1 on axis -1"),
        (ONE_HEAD, (3, 2, 4), "shape with one KV head: got (3, 2, 4), expected 1 on axis 1"),
        (ONE_HEAD, (3,), "shape with one KV head: got (3,), expected 1 on axis 1"),
        (BATCHED, (), "shape with one sequence: got (), expected 1 on axis 0"),
        (FLATTENED, (3, 10), "shape of flattened streams: got (3, 10), expected [..., 4 * width]"),
    ],
)
def test_a_shape_that_is_not_theirs_is_refused(change: Change, shape: tuple[int, ...], fault: str) -> None:
    with pytest.raises(RequestError) as refusal:
        change.ours(np.zeros(shape))
    assert str(refusal.value) == fault


def test_other_numbers_of_streams_do_not_flatten() -> None:
    with pytest.raises(RequestError, match=r"shape of streams: got \(3, 2, 5\)"):
        FLATTENED.theirs(np.zeros((3, 2, 5)))


def test_what_is_listed_by_score_ascends_here() -> None:
    assert UNSORTED.ours(np.array([[5, 1, 3], [2, 9, 0]])).tolist() == [[1, 3, 5], [0, 2, 9]]


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_a_selection_ascends_and_ends_in_minus_one(dtype: type) -> None:
    theirs = np.array([[7, -1, 2, -1], [0, 3, 1, 2], [-1, -1, -1, -1]], dtype=dtype)
    ours = SELECTION.ours(theirs)
    assert ours.dtype == dtype
    assert ours.tolist() == [[2, 7, -1, -1], [0, 1, 2, 3], [-1, -1, -1, -1]]
