"""Windows that begin late, compressed rows that are there already, and views of the ends of prompts."""

import torch
from torch import Tensor

from flash41.cache.contiguous import ContiguousStore
from flash41.cache.rows import RowFormats
from flash41.cache.store_shape import StoreShape
from flash41.cache.views import Span, WindowRows
from flash41.numerics.stored_rows import RowFormat

WINDOW = 4
SHAPE = StoreShape(
    num_slots=3,
    max_positions=32,
    num_layers=1,
    window=WINDOW,
    ring=WINDOW,
    channels=1,
    index_channels=1,
    owner_ratios={0: 2, 1: 1},
    member_depth=2,
)
PLAIN = RowFormats(window=RowFormat.FP32, main=RowFormat.FP32, index=RowFormat.FP32)


def rows(*spans: Span) -> Tensor:
    """A row per position that tells slot and position."""
    return torch.tensor([[100.0 * span.slot + position] for span in spans for position in range(span.start, span.end)])


def seen(found: WindowRows) -> list[list[int]]:
    return [found.rows[found.index[t, : found.counts[t]], 0].int().tolist() for t in range(len(found.counts))]


def test_a_window_reads_nothing_before_its_start() -> None:
    store = ContiguousStore(SHAPE, PLAIN)
    store.reset(1, 10)
    first = Span(slot=1, start=10, length=3, offset=0, window_start=10)
    assert seen(store.view([first]).window(0, rows(first))) == [[110], [110, 111], [110, 111, 112]]
    then = Span(slot=1, start=13, length=2, offset=0, window_start=10)
    assert seen(store.view([then]).window(0, rows(then))) == [[110, 111, 112, 113], [111, 112, 113, 114]]


def test_a_slot_may_be_reset_to_a_position() -> None:
    store = ContiguousStore(SHAPE, PLAIN)
    store.reset(2, 7)
    assert store.cursors == [0, 0, 7]
    store.reset(2)
    assert store.cursors == [0, 0, 0]


def test_groups_that_are_there_already_are_not_closed_again() -> None:
    store = ContiguousStore(SHAPE, PLAIN)
    store.reset(0, 3)
    span = Span(slot=0, start=3, length=7, offset=0, window_start=3, planes_end=6)
    view = store.view([span])
    # Ratio 2: groups end at 3, 5, 7, 9, of which the planes hold those before 6; the one of 2 and 3 is not even whole.
    assert view.closed_groups(2).row_ids.tolist() == [3, 4]
    assert view.closed_groups(2).last_rows.tolist() == [4, 6]
    assert view.closed_groups(1).row_ids.tolist() == [6, 7, 8, 9]
    values = rows(span)
    members, _ = view.group_members(0, values, values)
    assert members[:, :, 0].int().tolist() == [[6, 7], [8, 9]]


def test_without_tails_there_is_no_narrower_view() -> None:
    store = ContiguousStore(SHAPE, PLAIN)
    assert store.view([Span(slot=0, start=0, length=5, offset=0)]).tail() is None


def test_a_row_far_behind_its_tail_sees_its_whole_window_anyway() -> None:
    store = ContiguousStore(SHAPE, PLAIN)
    for start, is_cut in ((4, True), (6, True), (7, False), (9, False)):
        store.reset(0, start)
        view = store.view([Span(slot=0, start=start, length=1, offset=0, tail_start=4)])
        assert (view.tail() is not None) == is_cut, start


def test_a_tail_keeps_the_last_rows_of_each_span_and_cuts_their_windows() -> None:
    store = ContiguousStore(SHAPE, PLAIN)
    store.reset(1, 6)
    spans = [
        Span(slot=0, start=0, length=6, offset=0, tail_start=4),
        Span(slot=1, start=6, length=1, offset=6),
        Span(slot=2, start=0, length=3, offset=7, tail_start=9),
    ]
    view = store.view(spans)
    ring = store.windows[0]
    ring.write(torch.arange(4, 8), torch.tensor([[104.0], [105.0], [-1.0], [103.0]]))  # positions 3 to 5 of slot 1
    found = view.tail()
    assert found is not None
    narrow, kept = found
    assert kept.tolist() == [4, 5, 6]
    assert [(span.slot, span.start, span.length, span.offset) for span in narrow.spans] == [
        (0, 4, 2, 0),
        (1, 6, 1, 2),
    ]
    assert seen(narrow.window(0, rows(*narrow.spans))) == [[4], [4, 5], [103, 104, 105, 106]]


def test_a_step_without_a_row_of_any_tail_has_an_empty_view() -> None:
    store = ContiguousStore(SHAPE, PLAIN)
    found = store.view([Span(slot=0, start=0, length=3, offset=0, tail_start=9)]).tail()
    assert found is not None
    assert (len(found[0].spans), found[1].tolist(), found[1].dtype) == (0, [], torch.int64)
