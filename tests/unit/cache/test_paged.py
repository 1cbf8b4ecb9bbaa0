"""The store of pages beside the contiguous one: the same bits, whichever pages hold them and whatever lay there."""

import itertools
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flash41.cache.contiguous import ContiguousStore
from flash41.cache.geometry import PoolGeometry
from flash41.cache.paged import PagedStore
from flash41.cache.placement import Placement, placement
from flash41.cache.rows import RowFormats, row_formats
from flash41.cache.store import Store, StoreView
from flash41.cache.store_shape import StoreShape, store_shape
from flash41.cache.views import Span
from flash41.config.run import PoolDtype
from flash41.errors import CapacityError, ProtocolError
from helpers.cache_geometry import tiny
from helpers.config_documents import tiny_config
from helpers.planes import read_index, read_main
from helpers.pool_rows import random_rows
from helpers.tensors import normal

BLOCK_SIZE, NUM_PAGES, NUM_SLOTS, LONGEST = 4, 12, 3, 40
POOLS = [("bf16", "fp4"), ("bf16", "bf16"), ("bf16", "fp8"), ("fp4", "fp4"), ("fp4", "fp8"), ("fp32", "fp32")]
POISON = 0xFF
"""As BF16, FP32, E4M3 or E8M0: NaN."""


def geometry(main: str = "bf16", index: str = "fp4", block_size: int = BLOCK_SIZE) -> PoolGeometry:
    return tiny(PoolDtype(main), PoolDtype(index), block_size=block_size)


def shape() -> StoreShape:
    return store_shape(tiny_config(), NUM_SLOTS, LONGEST)


def paged(
    main: str = "bf16", index: str = "fp4", block_size: int = BLOCK_SIZE, num_pages: int = NUM_PAGES
) -> PagedStore:
    return PagedStore(shape(), placement(geometry(main, index, block_size), num_pages, NUM_SLOTS))


def poison_page(store: PagedStore, page_id: int) -> None:
    places, memory = store.pool.placement, store.pool.memory
    sizes = places.geometry
    memory[page_id * sizes.page_main_bytes : (page_id + 1) * sizes.page_main_bytes] = POISON
    for owner in sizes.owners:
        for row in range(owner.rows_per_page):
            place = (owner.layer_id, page_id, row)
            addresses = [places.index_value_address(*place, byte) for byte in range(sizes.index.value_bytes)]
            addresses += [places.index_scale_address(*place, byte) for byte in range(sizes.index.scale_bytes)]
            memory[torch.tensor(addresses)] = POISON


def poison_slot(store: PagedStore, slot: int) -> None:
    places = store.pool.placement
    start = places.field_address(slot, "window")
    store.pool.memory[start : start + places.geometry.state_bytes] = POISON


class Twins:
    """Both kinds of store, fed alike; pages of the one are chosen by a shuffled list of free ones."""

    def __init__(self, main: str, index: str, block_size: int = BLOCK_SIZE) -> None:
        self.paged = paged(main, index, block_size, NUM_PAGES * BLOCK_SIZE // block_size)
        self.plain = ContiguousStore(shape(), row_formats(self.paged.pool.placement.geometry.pool))
        self.paged.pool.memory.fill_(POISON)
        self.free = list(range(self.paged.pool.placement.num_pages))
        self.pages: dict[int, list[int]] = {slot: [] for slot in range(NUM_SLOTS)}
        self.seed = 0

    @property
    def formats(self) -> RowFormats:
        return row_formats(self.paged.pool.placement.geometry.pool)

    def needed(self, slot: int, length: int) -> int:
        """Pages that a slot takes for so many more tokens."""
        return -(-(self.paged.cursors[slot] + length) // self.paged.block_size) - len(self.pages[slot])

    def release(self, slot: int) -> None:
        for page_id in self.pages[slot]:
            poison_page(self.paged, page_id)
        poison_slot(self.paged, slot)
        self.free += self.pages[slot]
        self.pages[slot] = []
        for store in (self.paged, self.plain):
            store.reset(slot)

    def play(self, batch: list[tuple[int, int]], pick: st.DataObject | None = None) -> None:
        """One batch of (slot, length) through every call a model makes, on both stores."""
        for slot, length in batch:
            for _ in range(self.needed(slot, length)):
                number = 0 if pick is None else pick.draw(st.integers(0, len(self.free) - 1))
                self.pages[slot].append(self.free.pop(number))
            self.paged.assign(slot, self.pages[slot])
        offsets = itertools.accumulate((length for _, length in batch), initial=0)
        spans = [
            Span(slot=slot, start=self.paged.cursors[slot], length=length, offset=offset)
            for (slot, length), offset in zip(batch, offsets, strict=False)
        ]
        self.seed += 1
        self._compare(self.paged.view(spans), self.plain.view(spans), spans)

    def _compare(self, one: StoreView, other: StoreView, spans: list[Span]) -> None:
        num_rows, sizes = sum(span.length for span in spans), shape()
        for layer_id in range(sizes.num_layers):
            rows = random_rows(self.formats.window, num_rows, sizes.channels, 31 * self.seed + layer_id)
            seen, expected = one.window(layer_id, rows), other.window(layer_id, rows)
            for name in ("rows", "index", "counts"):
                assert torch.equal(getattr(seen, name), getattr(expected, name)), (layer_id, name)
        for owner, ratio in sizes.owner_ratios.items():
            groups = one.closed_groups(ratio)
            assert torch.equal(groups.row_ids, other.closed_groups(ratio).row_ids)
            if ratio > 1:
                values = normal(num_rows, sizes.channels, seed=17 * self.seed + owner, dtype=torch.float32)
                for got, wanted in zip(
                    one.group_members(owner, values, -values), other.group_members(owner, values, -values), strict=True
                ):
                    assert torch.equal(got, wanted), owner
            count = len(groups.row_ids)
            main = random_rows(self.formats.main, count, sizes.channels, 13 * self.seed + owner)
            index = random_rows(self.formats.index, count, sizes.index_channels, 11 * self.seed + owner)
            for view in (one, other):
                view.append_main(owner, main)
                view.append_index(owner, index)
            self._compare_planes(one, other, spans, owner, ratio)

    @staticmethod
    def _compare_planes(one: StoreView, other: StoreView, spans: list[Span], owner: int, ratio: int) -> None:
        longest = max(span.end // ratio for span in spans)
        everything = torch.arange(longest).repeat(sum(span.length for span in spans), 1)
        main, expected_main = read_main(one, owner, everything), read_main(other, owner, everything)
        keys, expected_keys = (read_index(view, owner, spans, longest) for view in (one, other))
        for number, span in enumerate(spans):
            visible = span.end // ratio  # what lies behind is padding, which the model masks
            rows = slice(span.offset, span.offset + span.length)
            assert torch.equal(main[rows, :visible], expected_main[rows, :visible]), (owner, span)
            assert torch.equal(keys[number, :visible], expected_keys[number, :visible]), (owner, span)
            assert main[rows, :visible].isfinite().all(), (owner, span)


@pytest.mark.parametrize("pair", POOLS, ids=str)
def test_any_pages_chunks_and_company_show_the_rows_of_the_contiguous_store(pair: tuple[str, str]) -> None:
    @settings(max_examples=10, deadline=None)
    @given(data=st.data(), block_size=st.sampled_from((4, 8, 12)))
    def holds(data: st.DataObject, block_size: int) -> None:
        twins = Twins(*pair, block_size)
        for _ in range(data.draw(st.integers(1, 8), label="batches")):
            for slot in data.draw(st.sets(st.integers(0, NUM_SLOTS - 1), max_size=1), label="released"):
                twins.release(slot)
            slots = data.draw(st.permutations(range(NUM_SLOTS)))[: data.draw(st.integers(1, NUM_SLOTS))]
            batch, num_free = [], len(twins.free)
            for slot in slots:
                length = min(data.draw(st.integers(1, 17), label="rows"), LONGEST - twins.paged.cursors[slot])
                if length > 0 and twins.needed(slot, length) <= num_free:
                    batch.append((slot, length))
                    num_free -= twins.needed(slot, length)
            if batch:
                twins.play(batch, data)

    holds()


@pytest.mark.parametrize("pair", POOLS, ids=str)
def test_a_slot_and_its_pages_serve_another_request_although_nan_lies_in_them(pair: tuple[str, str]) -> None:
    twins = Twins(*pair)
    twins.play([(0, 19), (1, 7)])
    twins.release(0)
    twins.free.reverse()
    for length in (1, 1, 9, 2, 14):
        twins.play([(0, length), (1, 1)])


def test_the_same_table_in_another_order_shows_other_rows() -> None:
    # The comparisons above would also hold for a store that ignores its pages if they were always in order.
    store = paged()
    store.assign(0, (2, 0, 1))
    found = store.plane_addresses(torch.tensor([[0]]), torch.arange(12), 1)[0].tolist()
    assert found == [8, 9, 10, 11, 0, 1, 2, 3, 4, 5, 6, 7]
    halves = store.plane_addresses(torch.tensor([[0]]), torch.arange(6), 2)[0].tolist()
    assert halves == [4, 5, 0, 1, 2, 3]


@pytest.mark.parametrize(("num_pages", "length", "needed"), [(0, 1, 1), (1, 5, 2), (2, 40, 10)])
def test_a_span_without_pages_is_refused_before_anything_moves(num_pages: int, length: int, needed: int) -> None:
    store = paged()
    store.assign(0, range(9, 12))
    store.assign(1, range(num_pages))
    batch = [Span(slot=0, start=0, length=3, offset=0), Span(slot=1, start=0, length=length, offset=3)]
    message = f"slot 1: pages for {length} positions: got {num_pages}, expected at least {needed}"
    with pytest.raises(ProtocolError, match=message):
        store.view(batch)
    assert store.cursors == [0, 0, 0]
    store.assign(1, range(needed - 1))
    with pytest.raises(ProtocolError, match=f"got {needed - 1}"):
        store.view(batch)
    store.assign(1, range(needed))
    store.view(batch)
    assert store.cursors == [3, length, 0]


def test_a_slot_that_was_reset_has_no_pages_until_it_gets_some() -> None:
    store = paged()
    store.assign(2, (0, 1))
    store.view([Span(slot=2, start=0, length=8, offset=0)])
    store.reset(2)
    with pytest.raises(ProtocolError, match="slot 2: pages for 1 positions: got 0"):
        store.view([Span(slot=2, start=0, length=1, offset=0)])
    store.assign(2, (0, 1))
    store.view([Span(slot=2, start=0, length=1, offset=0)])


def test_a_request_longer_than_the_longest_is_refused_whatever_its_pages() -> None:
    store = paged(num_pages=20)
    store.assign(0, range(10))
    with pytest.raises(CapacityError, match="got 41, expected at most 40 positions"):
        store.view([Span(slot=0, start=0, length=41, offset=0)])
    with pytest.raises(AssertionError, match="11 pages, 10 hold the longest request"):
        store.assign(0, range(11))


@pytest.mark.parametrize("page_id", [-1, NUM_PAGES, NUM_PAGES + 7])
def test_a_page_outside_the_pool_is_a_mistake_of_the_engine(page_id: int) -> None:
    with pytest.raises(AssertionError, match=f"of {NUM_PAGES}"):
        paged().assign(0, (0, page_id))


@pytest.mark.parametrize("change", ["num_slots", "num_layers", "ring", "channels", "member_depth", "owner_ratios"])
def test_a_shape_that_the_pool_was_not_laid_out_for_is_a_mistake_of_the_engine(change: str) -> None:
    places: Placement = placement(geometry(), NUM_PAGES, NUM_SLOTS)
    base = shape()
    value = {} if change == "owner_ratios" else getattr(base, change) + 1
    with pytest.raises(AssertionError):
        PagedStore(replace(base, **{change: value}), places)
    store: Store = PagedStore(base, places)
    assert store.cursors == [0] * NUM_SLOTS
