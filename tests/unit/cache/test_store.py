"""What a store promises of every layout: which rows can be taken back."""

from dataclasses import dataclass, field

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from flash41.cache.contiguous import ContiguousStore
from flash41.cache.rows import RowFormats
from flash41.cache.store_shape import StoreShape, store_shape
from flash41.cache.views import Span
from flash41.errors import ProtocolError
from flash41.numerics.stored_rows import RowFormat
from helpers.config_documents import tiny_config
from helpers.planes import read_index, read_main

FP32 = RowFormats(window=RowFormat.FP32, main=RowFormat.FP32, index=RowFormat.FP32)
WINDOW, DRAFTS, RATIO = 8, 5, 2


def shape(ring: int = WINDOW + DRAFTS, depth: int = RATIO + DRAFTS) -> StoreShape:
    return StoreShape(
        num_slots=2,
        max_positions=400,
        num_layers=1,
        window=WINDOW,
        ring=ring,
        channels=1,
        index_channels=1,
        owner_ratios={0: RATIO},
        member_depth=depth,
    )


@dataclass
class Request:
    """One slot of a store beside the plain list of what it should hold; every write has a value of its own."""

    store: ContiguousStore
    kept: list[float] = field(default_factory=list)
    planes: list[float] = field(default_factory=list)
    written: int = 0
    next_value: float = 1.0

    def feed(self, count: int) -> None:
        start = len(self.kept)
        values = [self.next_value + number for number in range(count)]
        self.next_value += count
        self.kept += values
        self.written = max(self.written, len(self.kept))
        view = self.store.view([Span(slot=1, start=start, length=count, offset=0)])
        rows = torch.tensor(values).unsqueeze(1)
        seen = view.window(0, rows)
        for row, position in enumerate(range(start, start + count)):
            listed = seen.rows[seen.index[row, : seen.counts[row]], 0].tolist()
            assert listed == self.kept[max(0, position - WINDOW + 1) : position + 1], position
        self._close(view.group_members(0, rows, -rows)[0])
        sums = torch.tensor(self.planes[start // RATIO :]).unsqueeze(1)
        view.append_main(0, sums)
        view.append_index(0, -sums)
        everything = torch.arange(len(self.planes)).expand(count, -1)
        assert read_main(view, 0, everything)[0, :, 0].tolist() == self.planes
        assert (-read_index(view, 0, view.spans, len(self.planes))[0, :, 0]).tolist() == self.planes

    def _close(self, members: Tensor) -> None:
        whole = len(self.kept) // RATIO
        pairs = [self.kept[number * RATIO : (number + 1) * RATIO] for number in range(len(self.planes), whole)]
        assert members[:, :, 0].tolist() == pairs
        self.planes += [sum(pair) for pair in pairs]

    def rewind(self, position: int) -> None:
        self.store.rewind(1, position)
        del self.kept[position:], self.planes[position // RATIO :]


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_what_is_written_after_rows_were_taken_back_is_seen_as_if_they_had_never_been(data: st.DataObject) -> None:
    request = Request(ContiguousStore(shape(), FP32))
    for _ in range(data.draw(st.integers(1, 12), label="turns")):
        request.feed(data.draw(st.integers(1, 20), label="rows"))
        least = max(0, request.written - DRAFTS)
        request.rewind(data.draw(st.integers(least, len(request.kept)), label="kept"))
    request.feed(3)


@pytest.mark.parametrize("parity", [0, 1])
@pytest.mark.parametrize("accepted", range(6))
@pytest.mark.parametrize("phase", range(WINDOW + DRAFTS))
def test_every_acceptance_at_every_phase_of_ring_and_group(phase: int, accepted: int, parity: int) -> None:
    request = Request(ContiguousStore(shape(), FP32))
    request.feed(20 + phase)
    request.feed(1 + parity)
    for _ in range(3):
        start = len(request.kept)
        request.feed(1 + DRAFTS)
        request.rewind(start + 1 + accepted)


@pytest.mark.parametrize("ring", [WINDOW, WINDOW + 1, WINDOW + 4])
def test_a_shorter_ring_refuses_what_it_could_not_show(ring: int) -> None:
    request = Request(ContiguousStore(shape(ring=ring), FP32))
    request.feed(20)
    request.feed(1 + DRAFTS)
    expected = (
        rf"slot 1: position kept: got 21, expected from {26 - (ring - WINDOW)} to 26 \(rows that were overwritten"
    )
    with pytest.raises(ProtocolError, match=expected):
        request.rewind(21)
    request.rewind(26 - (ring - WINDOW))
    request.feed(4)


def test_rows_are_counted_back_from_the_furthest_ever_written() -> None:
    request = Request(ContiguousStore(shape(), FP32))
    request.feed(30)
    request.rewind(26)
    request.feed(1)
    request.rewind(25)
    with pytest.raises(ProtocolError, match=r"position kept: got 24, expected from 25 to 25"):
        request.rewind(24)
    request.feed(7)
    request.rewind(27)


def test_nothing_ahead_can_be_kept_and_a_reset_forgets() -> None:
    request = Request(ContiguousStore(shape(), FP32))
    request.feed(3)
    with pytest.raises(ProtocolError, match=r"position kept: got 4, expected from 0 to 3"):
        request.rewind(4)
    request.rewind(0)
    request.feed(60)
    request.store.reset(1)
    request = Request(request.store)
    request.feed(4)
    request.rewind(0)
    assert request.store.cursors == [0, 0]


def test_a_store_without_drafting_takes_nothing_back() -> None:
    store = ContiguousStore(store_shape(tiny_config(), 1, 40), FP32)
    store.view([Span(slot=0, start=0, length=9, offset=0)])
    store.rewind(0, 9)
    with pytest.raises(ProtocolError, match=r"position kept: got 8, expected from 9 to 9"):
        store.rewind(0, 8)


def test_a_slot_that_begins_behind_a_restored_state_takes_back_nothing_of_it() -> None:
    store = ContiguousStore(shape(), FP32)
    store.reset(1, 12)
    store.view([Span(slot=1, start=12, length=3, offset=0)])
    store.rewind(1, 13)
    with pytest.raises(ProtocolError, match=r"position kept: got 11, expected from 12 to 13"):
        store.rewind(1, 11)
    store.reset(1)
    assert store.cursors[1] == 0
