"""What the rows of a draft block see, against plain lists, and that a block leaves nothing behind."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flash41.cache.blocks import DraftView
from flash41.cache.contiguous import ContiguousStore
from flash41.cache.rows import RowBuffer, RowFormats
from flash41.cache.store_shape import StoreShape
from flash41.cache.views import Span
from flash41.errors import ProtocolError
from flash41.numerics.scaled import quantize_fp8_32
from flash41.numerics.stored_rows import RowFormat
from helpers.tensors import normal, vectors

FP32 = RowFormats(window=RowFormat.FP32, main=RowFormat.FP32, index=RowFormat.FP32)
PACKED = RowFormats(window=RowFormat.FP8_32, main=RowFormat.FP4_16, index=RowFormat.FP4_32)
BLOCKS = vectors("dspark")["blocks"]
WIDTH = 5


def store(*, window: int = 8, slots: int = 3, channels: int = 1, formats: RowFormats = FP32) -> ContiguousStore:
    return ContiguousStore(
        StoreShape(
            num_slots=slots,
            max_positions=8192,
            num_layers=2,
            window=window,
            ring=window + WIDTH,
            channels=channels,
            index_channels=32,
            owner_ratios={},
            member_depth=2 + WIDTH,
        ),
        formats,
    )


def fed(held: ContiguousStore, slot: int, count: int) -> None:
    """Appends rows whose value is 1000 * slot + position to both rings of a slot."""
    start = held.cursors[slot]
    view = held.view([Span(slot=slot, start=start, length=count, offset=0)])
    values = torch.arange(start, start + count).float().unsqueeze(1) + 1000.0 * slot
    view.window(0, values)
    view.append_context(1, values[view.surviving])


def seen(view: DraftView, layer_id: int, block: torch.Tensor) -> list[list[float]]:
    rows = view.window(layer_id, block)
    return [rows.rows[index[:count], 0].tolist() for index, count in zip(rows.index, rows.counts.tolist(), strict=True)]


def block_rows(num_blocks: int) -> torch.Tensor:
    return -1.0 - torch.arange(num_blocks * WIDTH).float().unsqueeze(1)


@pytest.mark.parametrize("case", BLOCKS, ids=lambda case: f"P{case['P']}")
def test_block_vectors(case: dict[str, Any]) -> None:
    held = store(window=128)
    fed(held, 1, case["P"] + 1)
    view = DraftView(held, [1], WIDTH)
    (span,) = view.spans
    assert list(range(span.start, span.end)) == case["draft_positions"]
    context = [1000.0 + position for position in range(case["context_first"], case["P"] + 1)]
    assert len(context) == case["context_rows"]
    for layer_id in (0, 1):
        assert view.context(layer_id)[:, 0].tolist() == context
        rows = seen(view, layer_id, block_rows(1))
        assert rows == [[*context, -1, -2, -3, -4, -5]] * WIDTH
        assert {len(row) for row in rows} == {case["keys_per_row"]}


@settings(max_examples=30, deadline=None)
@given(lengths=st.lists(st.integers(1, 40), min_size=3, max_size=3), slots=st.permutations([0, 1, 2]), data=st.data())
def test_every_request_of_a_batch_sees_its_own_context_and_its_own_block(
    lengths: list[int], slots: list[int], data: st.DataObject
) -> None:
    held = store()
    for slot, length in enumerate(lengths):
        first = data.draw(st.integers(1, length), label="first chunk")
        fed(held, slot, first)
        if length > first:
            fed(held, slot, length - first)
    slots = slots[: data.draw(st.integers(1, 3), label="requests")]
    rows = seen(DraftView(held, slots, WIDTH), 1, block_rows(len(slots)))
    for number, slot in enumerate(slots):
        context = [1000.0 * slot + position for position in range(max(0, lengths[slot] - 8), lengths[slot])]
        block = block_rows(len(slots))[number * WIDTH : (number + 1) * WIDTH, 0].tolist()
        assert rows[number * WIDTH : (number + 1) * WIDTH] == [[*context, *block]] * WIDTH


def test_a_block_leaves_cursors_and_rings_as_they_are() -> None:
    held = store()
    fed(held, 0, 13)
    kept = [ring.read(torch.arange(3 * 13)).clone() for ring in held.windows]
    view = DraftView(held, [0], WIDTH)
    first = seen(view, 1, block_rows(1))
    view.append_context(1, block_rows(0))
    assert held.cursors == [13, 0, 0]
    assert all(
        torch.equal(ring.read(torch.arange(3 * 13)), rows) for ring, rows in zip(held.windows, kept, strict=True)
    )
    assert seen(DraftView(held, [0], WIDTH), 1, block_rows(1)) == first


def test_the_context_of_rows_that_were_taken_back_is_the_one_before_them() -> None:
    held = store()
    fed(held, 2, 30)
    fed(held, 2, 6)
    held.rewind(2, 31)
    (row, *_) = seen(DraftView(held, [2], WIDTH), 1, block_rows(1))
    assert row[:-WIDTH] == [2000.0 + position for position in range(23, 31)]


def test_a_ring_of_one_row_less_has_lost_the_oldest_row_of_that_context() -> None:
    # Why 133: window + drafts is the least depth, with one row less the store must refuse (test_store.py).
    held = store()
    held.shape = StoreShape(**{name: getattr(held.shape, name) for name in held.shape.__slots__} | {"ring": 12})
    fed(held, 2, 30)
    fed(held, 2, 6)
    held.cursors[2] = 31
    (row, *_) = seen(DraftView(held, [2], WIDTH), 1, block_rows(1))
    assert row[:-WIDTH] == [2035.0, *(2000.0 + position for position in range(24, 31))]


def test_slots_that_hold_nothing_are_listed() -> None:
    held = store()
    fed(held, 1, 4)
    with pytest.raises(ProtocolError, match=r"slots to draft for: got \[0, 2\], expected slots that hold at least one"):
        DraftView(held, [0, 1, 2], WIDTH)


def test_packed_rings_give_what_their_codes_read() -> None:
    held = store(channels=64, formats=PACKED)
    codes = quantize_fp8_32(normal(11, 64, seed=1))
    view = held.view([Span(slot=0, start=0, length=11, offset=0)])
    view.append_context(1, codes.rows(view.surviving))
    block = quantize_fp8_32(normal(WIDTH, 64, seed=2))
    drafts = DraftView(held, [0], WIDTH)
    expected = codes.dequantize(torch.bfloat16)[3:]
    assert torch.equal(drafts.context(1), expected)
    assert torch.equal(drafts.window(1, block).rows, torch.cat((expected, block.dequantize(torch.bfloat16))))


def test_only_rows_that_a_ring_will_hold_are_asked_for_and_written_once(monkeypatch: pytest.MonkeyPatch) -> None:
    write, written = RowBuffer.write, []

    def record(buffer: RowBuffer, addresses: torch.Tensor, rows: Any) -> None:
        written.append(addresses.tolist())
        write(buffer, addresses, rows)

    held = store()
    view = held.view([
        Span(slot=0, start=0, length=40, offset=0),
        Span(slot=2, start=0, length=3, offset=40),
    ])  # fmt: skip
    assert view.surviving.tolist() == [*range(27, 40), 40, 41, 42]
    monkeypatch.setattr(RowBuffer, "write", record)
    view.append_context(0, torch.zeros(16, 1))
    assert len(set(written[0])) == len(written[0]) == 16
