import numpy as np
import pytest

from flash41.config.huggingface import read_config
from flash41.errors import RequestError
from flash41.tools.adapters.all import ADAPTERS
from flash41.tools.adapters.changes import BATCHED, COLUMN, UNSORTED
from flash41.tools.adapters.places import seen
from flash41.tools.adapters.record import Adapter, matches, to_ours, to_theirs
from flash41.tools.points import point_names
from helpers.golden_judge import CHECKPOINT, Array

SMALL = Adapter(
    engine="small",
    version="1",
    hooks=(
        seen("L{layer}.in", "tensor out-{before}", BATCHED),
        seen("L0.in", "tensor start"),
        seen("L{layer}.ids", "tensor ids-{layer}", UNSORTED),
        seen("L{layer}.weights", "tensor weights-{layer}", COLUMN, order_of="L{layer}.ids"),
    ),
    notes=(),
)

each_engine = pytest.mark.parametrize("engine", ADAPTERS)


@each_engine
def test_a_trace_comes_back_from_their_names(engine: str, points: dict[str, Array]) -> None:
    adapter = ADAPTERS[engine]
    theirs = to_theirs(adapter, points)
    ours, unknown = to_ours(adapter, theirs)
    assert unknown == ()
    assert len(theirs) == len(ours)
    for point, array in ours.items():
        assert np.array_equal(array, points[point]), point
        assert array.dtype == points[point].dtype
    shown = {hook.point for point in points for hook, _ in matches(adapter, point, "point")}
    assert shown == {hook.point for hook in adapter.hooks}, "every hook must have been tried"


@each_engine
def test_each_hook_is_of_a_point_that_a_trace_can_hold_and_has_a_name_of_its_own(engine: str) -> None:
    adapter = ADAPTERS[engine]
    known = point_names(read_config(CHECKPOINT), draft=True, images=True)
    found = [(hook, values) for point in known for hook, values in matches(adapter, point, "point")]
    names = [hook.name.format(**values) for hook, values in found]
    assert len(names) == len(set(names))
    assert {hook.point for hook, _ in found} == {hook.point for hook in adapter.hooks}
    leaders = {hook.order_of for hook in adapter.hooks} - {None}
    assert leaders <= {hook.point for hook in adapter.hooks}


def test_the_end_of_a_block_is_the_beginning_of_the_next() -> None:
    rows = np.ones((2, 3))
    theirs = to_theirs(SMALL, {"L0.in": rows, "L1.in": rows * 2, "L12.in": rows * 3})
    assert {name: array.shape for name, array in theirs.items()} == {
        "start": (2, 3),
        "out-0": (1, 2, 3),
        "out-11": (1, 2, 3),
    }
    ours, unknown = to_ours(SMALL, {"out-11": theirs["out-11"]})
    assert list(ours) == ["L12.in"]
    assert unknown == ()


def test_weights_follow_the_ids_they_belong_to() -> None:
    ids = np.array([[5, 1, 3], [0, 9, 2]])
    weights = np.array([[0.5, 0.1, 0.3], [0.0, 0.9, 0.2]])[..., None]
    ours, _ = to_ours(SMALL, {"ids-4": ids, "weights-4": weights})
    assert ours["L4.ids"].tolist() == [[1, 3, 5], [0, 2, 9]]
    assert ours["L4.weights"].tolist() == [[0.1, 0.3, 0.5], [0.0, 0.2, 0.9]]


def test_every_array_that_does_not_fit_is_reported() -> None:
    arrays = {
        "out-0": np.zeros((2, 3)),
        "ids-2": np.zeros((2, 3)),
        "weights-2": np.zeros((2, 2, 1)),
    }
    with pytest.raises(RequestError) as refusal:
        to_ours(SMALL, arrays)
    assert str(refusal.value).splitlines() == [
        "out-0: shape with one sequence: got (2, 3), expected 1 on axis 0",
        "weights-2: shape: got (2, 2), expected (2, 3), one entry beside each of its ids",
    ]


def test_weights_whose_order_nothing_tells_are_left_out() -> None:
    ours, left_out = to_ours(SMALL, {"weights-1": np.zeros((2, 3, 1)), "ids-2": np.zeros((2, 3))})
    assert list(ours) == ["L2.ids"]
    assert left_out == ("weights-1",)


def test_what_is_not_shown_is_left_out_and_what_is_not_known_is_named() -> None:
    logits = np.zeros((2, 7))
    assert list(to_theirs(SMALL, {"logits": logits, "embed": logits})) == ["logits"]
    ours, unknown = to_ours(SMALL, {"zebra": logits, "logits": logits, "out-x": logits})
    assert list(ours) == ["logits"]
    assert unknown == ("out-x", "zebra")
