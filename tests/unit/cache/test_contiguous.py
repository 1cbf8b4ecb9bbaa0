"""The contiguous store against plain lists of rows, for every way of cutting requests into batches."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flash41.cache.contiguous import ContiguousStore
from flash41.cache.rows import RowBuffer, RowFormats
from flash41.cache.store import StoreView
from flash41.cache.store_shape import StoreShape
from flash41.cache.views import Span
from flash41.errors import CapacityError, ProtocolError
from flash41.numerics.scaled import quantize_fp4_16, quantize_fp4_32, quantize_fp8_32
from flash41.numerics.stored_rows import RowFormat
from helpers.planes import read_index, read_main
from helpers.tensors import normal, vectors

VISIBILITY, ROPE = vectors("visibility"), vectors("rope")
FP32 = RowFormats(window=RowFormat.FP32, main=RowFormat.FP32, index=RowFormat.FP32)
BF16 = RowFormats(window=RowFormat.BF16, main=RowFormat.BF16, index=RowFormat.BF16)
PACKED = RowFormats(window=RowFormat.FP8_32, main=RowFormat.FP4_16, index=RowFormat.FP4_32)
OWNERS = {1: 1, 2: 2, 3: 3}
LONGEST = 40


def shape(**changes: Any) -> StoreShape:
    base: dict[str, Any] = {
        "num_slots": 3,
        "max_positions": LONGEST,
        "num_layers": 2,
        "window": 5,
        "ring": 5,
        "channels": 1,
        "index_channels": 1,
        "owner_ratios": OWNERS,
        "member_depth": 3,
    }
    return StoreShape(**(base | changes))


def row(request: int, layer: int, position: int) -> float:
    """The single channel of a row, different for every request, layer and position; exact in FP32."""
    return request * 1_000_000.0 + layer * 100_000.0 + position


def column(values: Sequence[float]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32).view(-1, 1)


@dataclass
class Seen:
    """What the layers of one request saw, in order of position or group."""

    windows: list[list[float]] = field(default_factory=list)
    members: dict[int, list[list[float]]] = field(default_factory=dict)
    groups: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    main: dict[int, list[float]] = field(default_factory=dict)
    index: dict[int, list[float]] = field(default_factory=dict)


def expected(request: int, length: int, window: int) -> Seen:
    seen = Seen()
    for layer in (0, 1):
        for p in range(length):
            seen.windows.append([row(request, layer, q) for q in range(max(0, p - window + 1), p + 1)])
    seen.windows.sort()
    for owner, ratio in OWNERS.items():
        count = length // ratio
        if ratio > 1:
            seen.members[owner] = [[row(request, 0, j * ratio + i) for i in range(ratio)] for j in range(count)]
        seen.groups[owner] = [(j, j * ratio) for j in range(count)]
        seen.main[owner] = [row(request, owner, j) for j in range(count)]
        seen.index[owner] = [-row(request, owner, j) for j in range(count)]
    return seen


def spans_of(batch: Sequence[tuple[int, int]], cursors: Sequence[int]) -> list[Span]:
    """Spans of (slot, length) pairs that go on where their slots stand."""
    offsets = itertools.accumulate((length for _, length in batch), initial=0)
    return [
        Span(slot=slot, start=cursors[slot], length=length, offset=offset)
        for (slot, length), offset in zip(batch, offsets, strict=False)
    ]


def play(
    store: ContiguousStore, batch: Sequence[tuple[int, int]], requests: Sequence[int], seen: dict[int, Seen]
) -> None:
    """Runs one batch through every call a model makes; `requests[slot]` is the request a slot holds."""
    spans = spans_of(batch, store.cursors)
    view = store.view(spans)
    owners = [requests[span.slot] for span in spans for _ in range(span.length)]
    positions = [p for span in spans for p in range(span.start, span.end)]
    for layer in (0, 1):
        rows = view.window(layer, column([row(r, layer, p) for r, p in zip(owners, positions, strict=True)]))
        for t, request in enumerate(owners):
            listed = rows.index[t, : rows.counts[t]]
            seen[request].windows.append(rows.rows[listed, 0].tolist())
    values = column([row(r, 0, p) for r, p in zip(owners, positions, strict=True)])
    for owner, ratio in OWNERS.items():
        groups = view.closed_groups(ratio)
        of_group = [owners[last] for last in groups.last_rows.tolist()]
        numbers = groups.row_ids.tolist()
        for request, number, position in zip(of_group, numbers, groups.positions.tolist(), strict=True):
            seen[request].groups.setdefault(owner, []).append((number, position))
        if ratio > 1:
            members, scores = view.group_members(owner, values, -values)
            assert torch.equal(scores, -members)
            for request, group in zip(of_group, members[:, :, 0].tolist(), strict=True):
                seen[request].members.setdefault(owner, []).append(group)
        made = column([row(r, owner, j) for r, j in zip(of_group, numbers, strict=True)])
        view.append_main(owner, made)
        view.append_index(owner, -made)
        read_planes(view, owner, ratio, spans, requests, seen)


def read_planes(
    view: StoreView, owner: int, ratio: int, spans: Sequence[Span], requests: Sequence[int], seen: dict[int, Seen]
) -> None:
    longest = max(span.end // ratio for span in spans)
    keys = read_index(view, owner, spans, longest)
    assert keys.shape == (len(spans), longest, 1)
    everything = torch.arange(longest).repeat(sum(span.length for span in spans), 1)
    main = read_main(view, owner, everything)
    for number, span in enumerate(spans):
        count, request = span.end // ratio, requests[span.slot]
        seen[request].index[owner] = keys[number, :count, 0].tolist()
        for t in (span.offset, span.offset + span.length - 1):
            seen[request].main[owner] = main[t, :count, 0].tolist()


def assert_seen(seen: Seen, request: int, length: int, window: int) -> None:
    want = expected(request, length, window)
    assert sorted(seen.windows) == want.windows
    for name in ("members", "groups", "main", "index"):
        got: dict[int, list[Any]] = getattr(seen, name)
        assert {owner: rows for owner, rows in got.items() if rows} == {
            owner: rows for owner, rows in getattr(want, name).items() if rows
        }, name


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 17), min_size=1, max_size=8),
    ring=st.integers(5, 9),
    depth=st.integers(3, 7),
)
def test_any_cut_of_a_request_into_chunks_shows_the_same_rows(lengths: list[int], ring: int, depth: int) -> None:
    store, seen = ContiguousStore(shape(ring=ring, member_depth=depth), FP32), {7: Seen()}
    total = 0
    for length in lengths:
        if total + length > LONGEST:
            break
        play(store, [(1, length)], [0, 7, 0], seen)
        total += length
    assert_seen(seen[7], 7, total, 5)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_requests_that_share_batches_in_any_order_see_only_themselves(data: st.DataObject) -> None:
    store, requests = ContiguousStore(shape(), FP32), [3, 8, 5]
    seen = {request: Seen() for request in requests}
    for _ in range(data.draw(st.integers(1, 7), label="batches")):
        slots = data.draw(st.permutations([0, 1, 2]))[: data.draw(st.integers(1, 3))]
        batch = [(slot, min(data.draw(st.integers(1, 12)), LONGEST - store.cursors[slot])) for slot in slots]
        batch = [(slot, length) for slot, length in batch if length]
        if batch:
            play(store, batch, requests, seen)
    for slot, request in enumerate(requests):
        assert_seen(seen[request], request, store.cursors[slot], 5)


def test_token_by_token_shows_what_one_shot_shows() -> None:
    store, seen = ContiguousStore(shape(), FP32), {1: Seen(), 2: Seen()}
    play(store, [(0, LONGEST)], [1, 2, 0], seen)
    for _ in range(LONGEST):
        play(store, [(1, 1)], [1, 2, 0], seen)
    for request in (1, 2):
        assert_seen(seen[request], request, LONGEST, 5)


def test_a_slot_used_again_shows_nothing_of_its_last_request() -> None:
    store, seen = ContiguousStore(shape(), FP32), {1: Seen(), 2: Seen(), 3: Seen()}
    play(store, [(0, 33), (1, 7)], [1, 2, 0], seen)
    store.reset(0)
    for length in (1, 4, 12, 2):
        play(store, [(1, 1), (0, length)], [3, 2, 0], seen)
    assert_seen(seen[3], 3, 19, 5)
    assert_seen(seen[2], 2, 11, 5)


@pytest.mark.parametrize("length", [128, 129, 300])
def test_a_chunk_wider_than_the_ring_leaves_its_last_rows(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    write, written = RowBuffer.write, []

    def record(buffer: RowBuffer, addresses: torch.Tensor, rows: Any) -> None:
        written.append(addresses.tolist())
        write(buffer, addresses, rows)

    monkeypatch.setattr(RowBuffer, "write", record)
    store = ContiguousStore(shape(window=128, ring=128, max_positions=512, owner_ratios={}), FP32)
    first = store.view([Span(slot=1, start=0, length=length, offset=0)])
    wide = first.window(0, column(range(length)))
    assert wide.rows[wide.index[-1, :128], 0].tolist() == list(range(length - 128, length))
    assert sorted(written[0]) == list(range(128, 256))  # every address of the slot's ring, and each once
    after = store.view([Span(slot=1, start=length, length=1, offset=0)]).window(0, column([length]))
    assert after.rows[after.index[0, : after.counts[0]], 0].tolist() == list(range(length - 127, length + 1))


@pytest.mark.parametrize("case", VISIBILITY["decode_rows"][::3], ids=lambda case: f"position{case['position']}")
def test_decode_window_vectors(case: dict[str, int]) -> None:
    position = case["position"]
    start = max(0, position - 300)
    store = ContiguousStore(shape(window=128, ring=128, max_positions=1 << 20, owner_ratios={}, channels=1), FP32)
    store.cursors[2] = start
    if start < position:
        store.view([Span(slot=2, start=start, length=position - start, offset=0)]).window(
            0, column(range(start, position))
        )
    rows = store.view([Span(slot=2, start=position, length=1, offset=0)]).window(0, column([position]))
    assert rows.counts.tolist() == [case["window_rows"]]
    listed = rows.rows[rows.index[0, : rows.counts[0]], 0].tolist()
    assert listed == list(range(case["window_first"], position + 1))


@pytest.mark.parametrize("case", VISIBILITY["prefill_split"])
def test_prefill_split_vectors(case: dict[str, int]) -> None:
    store = ContiguousStore(shape(window=128, ring=128, max_positions=2048, owner_ratios={}), FP32)
    store.cursors[0] = case["chunk_start"]
    length = case["chunk_len"]
    rows = store.view([Span(slot=0, start=case["chunk_start"], length=length, offset=0)]).window(
        0, torch.zeros(length, 1)
    )
    query, ring_rows = case["position"] - case["chunk_start"], rows.rows.shape[0] - length
    listed = rows.index[query, : rows.counts[query]]
    assert int((listed < ring_rows).sum()) == case["ring_rows"]
    assert int((listed >= ring_rows).sum()) == case["chunk_rows"]


@pytest.mark.parametrize("case", VISIBILITY["compressor_chunks"])
def test_compressor_chunk_vectors(case: dict[str, int]) -> None:
    store = ContiguousStore(shape(), FP32)
    store.cursors[0] = case["start"]
    view = store.view([Span(slot=0, start=case["start"], length=case["length"], offset=0)])
    groups = view.closed_groups(case["ratio"])
    numbers = list(range(case["first_group"], case["first_group"] + case["groups"]))
    assert groups.row_ids.tolist() == numbers
    assert groups.positions.tolist() == [number * case["ratio"] for number in numbers]
    assert groups.last_rows.tolist() == [n * case["ratio"] + case["ratio"] - 1 - case["start"] for n in numbers]
    # What stays open is what the next chunk starts with.
    assert case["pending_before"] + case["length"] - case["ratio"] * case["groups"] == case["pending_after"]
    assert store.cursors[0] % case["ratio"] == case["pending_after"]


@pytest.mark.parametrize("case", VISIBILITY["visible"])
def test_visible_row_vectors(case: dict[str, int]) -> None:
    position, ratio = case["position"], case["ratio"]
    owners = {0: ratio}
    store = ContiguousStore(shape(num_slots=1, max_positions=1 << 20, owner_ratios=owners, member_depth=2), FP32)
    store.cursors[0] = position
    span = Span(slot=0, start=position, length=1, offset=0)
    view = store.view([span])
    closed = view.closed_groups(ratio).row_ids.tolist()
    assert closed == ([case["visible"] - 1] if (position + 1) % ratio == 0 else [])
    assert read_index(view, 0, [span], case["visible"]).shape == (1, case["visible"], 1)


@pytest.mark.parametrize("case", ROPE["key_positions"])
def test_a_row_is_rotated_at_the_first_position_of_its_group(case: dict[str, int]) -> None:
    last = (case["row"] + 1) * case["ratio"] - 1
    store = ContiguousStore(shape(max_positions=2048), FP32)
    store.cursors[0] = last
    groups = store.view([Span(slot=0, start=last, length=1, offset=0)]).closed_groups(case["ratio"])
    assert (groups.row_ids.tolist(), groups.positions.tolist()) == ([case["row"]], [case["rope_position"]])


def test_packed_and_plain_pools_show_the_same_bits() -> None:
    """Window rows, main rows and index keys of two requests, rounded by the model, through both kinds of pool."""
    width = {"channels": 64, "index_channels": 32}
    stores = [ContiguousStore(shape(**width), formats) for formats in (PACKED, BF16)]
    for batch in ([(0, 9), (1, 2)], [(1, 1), (0, 1)], [(0, 3), (1, 12)]):
        num_rows = sum(length for _, length in batch)
        results = []
        for store in stores:
            spans = spans_of(batch, store.cursors)
            view = store.view(spans)
            window = quantize_fp8_32(normal(num_rows, 64, seed=num_rows))
            shown = view.window(0, window)
            # The rows of the batch itself are seen rounded, too.
            assert torch.equal(shown.rows[-num_rows:].float(), window.dequantize())
            count = len(view.closed_groups(2).row_ids)
            view.append_main(2, quantize_fp4_16(normal(count, 64, seed=count, sigma=0.01)))
            view.append_index(2, quantize_fp4_32(normal(count, 32, seed=count)))
            selected = torch.tensor([[0, -1]] * num_rows)
            longest = max(span.end // 2 for span in spans)
            results.append((shown.rows, read_main(view, 2, selected)[:, 0], read_index(view, 2, spans, longest)))
        for packed, plain in zip(*results, strict=True):
            assert (packed.dtype, plain.dtype) == (torch.bfloat16, torch.bfloat16)
            assert torch.equal(packed, plain)


@pytest.mark.parametrize("start", [0, 4, 6])
def test_a_span_that_does_not_go_on_where_the_slot_stands_names_both_positions(start: int) -> None:
    store = ContiguousStore(shape(), FP32)
    store.view([Span(slot=2, start=0, length=5, offset=0)])
    with pytest.raises(ProtocolError, match=rf"slot 2: state position: got 5, expected {start} \(.*again"):
        store.view([Span(slot=0, start=0, length=3, offset=0), Span(slot=2, start=start, length=1, offset=3)])
    assert store.cursors == [0, 0, 5]  # a refused batch moves nobody


def test_a_request_longer_than_its_slot_is_refused() -> None:
    store = ContiguousStore(shape(), FP32)
    store.view([Span(slot=0, start=0, length=LONGEST - 1, offset=0)])
    with pytest.raises(CapacityError, match="slot 0: request length: got 41, expected at most 40 positions"):
        store.view([Span(slot=0, start=LONGEST - 1, length=2, offset=0)])
    store.view([Span(slot=0, start=LONGEST - 1, length=1, offset=0)])
    assert store.cursors[0] == LONGEST


@pytest.mark.parametrize(
    ("spans", "message"),
    [
        ([(0, 0, 2, 1)], "partition"),
        ([(0, 0, 0, 0)], "partition"),
        ([(0, 0, 2, 0), (1, 0, 2, 3)], "partition"),
        ([(0, 0, 2, 0), (0, 0, 2, 2)], "share a slot"),
        ([(3, 0, 2, 0)], "slot 3 of 3"),
        ([(-1, 0, 2, 0)], "slot -1 of 3"),
    ],
)
def test_spans_that_are_no_batch_are_a_mistake_of_the_engine(spans: list[tuple[int, ...]], message: str) -> None:
    store = ContiguousStore(shape(), FP32)
    batch = [Span(slot=slot, start=start, length=length, offset=offset) for slot, start, length, offset in spans]
    with pytest.raises(AssertionError, match=message):
        store.view(batch)
    assert store.cursors == [0, 0, 0]


def test_planes_round_an_odd_length_up_and_are_never_empty() -> None:
    store = ContiguousStore(shape(max_positions=7), FP32)
    assert [store.capacity(ratio) for ratio in (1, 2, 3, 100)] == [7, 4, 3, 1]
    assert store.main[2].num_rows == 3 * 4
