"""What all stores share: slots with cursors, and a batch's view of rows whose addresses the store computes.

A store holds, per slot, a ring of window rows for each layer and, for owners that pool several tokens, a ring of FP32
members of the open group; and a main and an index plane for each owner.  Where a compressed row lies is the one thing
stores differ in: `plane_addresses`.  Rings are addressed here:

    window    slot * ring + position % ring
    members   (slot, position % depth)

The cursor of a slot is the number of positions it holds.  A span must start exactly there: anything else is an error
that names both, never a silent answer from the wrong state (spec: cache.md section 8).
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from flash41.cache.views import ClosedGroups, Rows, Span, WindowRows
from flash41.config.architecture import ModelConfig
from flash41.errors import CapacityError, ProtocolError, complaint


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreShape:
    """What a store must hold, in integers; made from the model's configuration by whoever builds the store."""

    num_slots: int
    """Requests at once."""
    max_positions: int
    """Longest request."""
    num_layers: int
    """Layers with a window, draft stages included where they are used."""
    window: int
    """Positions a query sees."""
    ring: int
    """Rows kept per layer, at least `window`."""
    channels: int
    """Channels of a window or compressed row."""
    index_channels: int
    """Channels of an index key."""
    owner_ratios: Mapping[int, int]
    """Tokens per row of each plane, by owner."""
    member_depth: int
    """Positions kept of an open group."""


def store_shape(config: ModelConfig, num_slots: int, max_positions: int) -> StoreShape:
    """What a store for the text model holds: a window per layer, a plane per owner."""
    ratios = config.attention.compress_ratios
    return StoreShape(
        num_slots=num_slots,
        max_positions=max_positions,
        num_layers=config.num_layers,
        window=config.attention.window,
        ring=config.attention.window,
        channels=config.attention.head_dim,
        index_channels=config.indexer.head_dim,
        owner_ratios={owner: ratios[owner] for owner in config.attention.kv_source_layer_ids},
        member_depth=max(ratios),
    )


class Buffer(Protocol):
    """Rows of one plane or of one layer's rings, addressed by flat row numbers."""

    @property
    def packs(self) -> bool:
        """Whether rows are kept as codes and scales."""
        ...

    def write(self, addresses: Tensor, rows: Rows) -> None:
        """Stores rows [n, channels] at distinct int64 addresses [n]."""
        ...

    def read(self, addresses: Tensor) -> Tensor:
        """Rows [..., channels] at int64 addresses [...]."""
        ...


class Store(ABC):
    """Slots, cursors and buffers; a subclass makes the buffers and knows where plane rows lie."""

    windows: Sequence[Buffer]
    """Rings of all slots, by layer."""
    main: Mapping[int, Buffer]
    """Compressed rows, by owner."""
    index: Mapping[int, Buffer]
    """Index keys, by owner."""
    members: Mapping[int, tuple[Tensor, Tensor]]
    """FP32 values and scores [slots, depth, channels] of open groups, by owner."""

    def __init__(self, shape: StoreShape) -> None:
        self.shape = shape
        self.cursors = [0] * shape.num_slots

    @abstractmethod
    def plane_addresses(self, slots: Tensor, row_ids: Tensor, ratio: int) -> Tensor:
        """Flat row numbers, int64 and broadcast, of rows of the slots' requests in planes of `ratio`."""

    def assign(self, slot: int, page_ids: Sequence[int]) -> None:  # noqa: B027  # most stores have no pages
        """Tells a store of pages which ones a slot has, in order of the positions they hold."""

    def reset(self, slot: int, position: int = 0) -> None:
        """Makes a slot empty; its rows are never read again before they are rewritten.  `position` comes next."""
        self.cursors[slot] = position

    def view(self, spans: Sequence[Span]) -> "StoreView":
        """Access for one batch; checks every span, then moves the cursors behind the batch."""
        self._check(spans)
        view = StoreView(self, spans)
        for span in spans:
            self.cursors[span.slot] = span.end
        return view

    def _check(self, spans: Sequence[Span]) -> None:
        offset = 0
        for span in spans:
            assert span.offset == offset, f"spans do not partition the batch: {spans}"
            assert span.length > 0, f"spans do not partition the batch: {spans}"
            assert 0 <= span.slot < self.shape.num_slots, f"slot {span.slot} of {self.shape.num_slots}"
            offset += span.length
            held = self.cursors[span.slot]
            if span.start != held:
                remedy = "the request must be computed again from an earlier kept position"
                raise ProtocolError(complaint(f"slot {span.slot}: state position", held, str(span.start), remedy))
            if span.end > self.shape.max_positions:
                expected = f"at most {self.shape.max_positions} positions"
                raise CapacityError(complaint(f"slot {span.slot}: request length", span.end, expected))
        slots = [span.slot for span in spans]
        assert len(set(slots)) == len(slots), f"two spans share a slot: {slots}"


class StoreView:
    """One batch's access to a store; implements `cache.views.BatchView`."""

    def __init__(self, store: Store, spans: Sequence[Span]) -> None:
        self.spans = spans
        self._store = store
        self._groups: dict[int, tuple[ClosedGroups, Tensor]] = {}
        if not spans:
            return  # the tail of a step that holds none
        self._slots = torch.cat([torch.full((span.length,), span.slot) for span in spans])
        self._positions = torch.cat([torch.arange(span.start, span.end) for span in spans])
        self._starts = torch.cat([torch.full((span.length,), span.start) for span in spans])
        self._plan_window()

    def _plan_window(self) -> None:
        """Ring addresses and per-query indices, the same for every layer.

        The rows a layer sees are numbered: prefixes of all spans first, then the T rows of the batch.  For one span of
        start s and a query at p the window is [max(0, p-W+1), p]; its part before s lies in the prefix, the rest in
        the batch.
        """
        shape = self._store.shape
        prefixes, shifts, total = [], [], 0
        for span in self.spans:
            first = max(span.window_start, span.start - shape.window + 1)
            prefixes.append(span.slot * shape.ring + torch.arange(first, span.start) % shape.ring)
            shifts.append(torch.full((span.length,), total - first))
            total += span.start - first
        self._prefix = torch.cat(prefixes)
        floors = torch.cat([torch.full((span.length,), span.window_start) for span in self.spans])
        first_seen = torch.maximum(self._positions - shape.window + 1, floors)
        seen = first_seen.unsqueeze(1) + torch.arange(shape.window)
        batch_shift = total + torch.arange(len(self._positions)) - self._positions
        shift = torch.where(seen < self._starts.unsqueeze(1), torch.cat(shifts).unsqueeze(1), batch_shift.unsqueeze(1))
        self._window_counts = self._positions - first_seen + 1
        real = torch.arange(shape.window) < self._window_counts.unsqueeze(1)
        self._window_index = torch.where(real, seen + shift, 0)
        # A chunk may be wider than the ring: only its last rows survive, and a ring address is written once.
        ends = torch.cat([torch.full((span.length,), span.end) for span in self.spans])
        self._kept = (self._positions >= ends - shape.ring).nonzero().squeeze(1)
        self._ring_addresses = (self._slots * shape.ring + self._positions % shape.ring)[self._kept]

    def tail(self) -> "tuple[StoreView, Tensor] | None":
        """Access for the rows of all tails; None where no span is cut and no window of theirs would be."""
        window = self._store.shape.window
        if all(not span.tail_start or span.start >= span.tail_start + window - 1 for span in self.spans):
            return None
        spans, rows, offset = [], [], 0
        for span in self.spans:
            start = max(span.start, span.tail_start)
            if start < span.end:
                seen = max(span.window_start, span.tail_start)
                length = span.end - start
                spans.append(replace(span, start=start, length=length, offset=offset, window_start=seen))
                rows.append(torch.arange(span.offset + span.length - length, span.offset + span.length))
                offset += length
        return StoreView(self._store, spans), torch.cat(rows) if rows else torch.zeros(0, dtype=torch.int64)

    def window(self, layer_id: int, rows: Rows) -> WindowRows:
        """Appends the batch's window rows and returns what the queries of this layer see."""
        ring = self._store.windows[layer_id]
        before = ring.read(self._prefix)
        stored = rows if isinstance(rows, Tensor) else rows.dequantize(before.dtype)
        # A ring that packs takes the codes as they are; any other takes what they read, which is at hand.
        kept = rows.rows(self._kept) if ring.packs and not isinstance(rows, Tensor) else stored[self._kept]
        ring.write(self._ring_addresses, kept)
        return WindowRows(
            rows=torch.cat((before, stored.to(before.dtype))), index=self._window_index, counts=self._window_counts
        )

    def closed_groups(self, ratio: int) -> ClosedGroups:
        """Groups whose last token is in this batch."""
        return self._closed(ratio)[0]

    def _closed(self, ratio: int) -> tuple[ClosedGroups, Tensor]:
        if ratio not in self._groups:
            there = torch.cat([torch.full((span.length,), span.planes_end) for span in self.spans])
            closed = ((self._positions + 1) % ratio == 0) & (self._positions >= there)
            last_rows = closed.nonzero().squeeze(1)
            row_ids = self._positions[last_rows] // ratio
            addresses = self._store.plane_addresses(self._slots[last_rows], row_ids, ratio)
            groups = ClosedGroups(last_rows=last_rows, row_ids=row_ids, positions=row_ids * ratio)
            self._groups[ratio] = (groups, addresses)
        return self._groups[ratio]

    def group_members(self, owner: int, values: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
        """Members of the closed groups, the first ones from the ring where they came with an earlier batch."""
        shape = self._store.shape
        ratio, depth = shape.owner_ratios[owner], shape.member_depth
        last_rows = self._closed(ratio)[0].last_rows
        back = torch.arange(ratio - 1, -1, -1)
        positions = self._positions[last_rows].unsqueeze(1) - back
        in_batch = (positions >= self._starts[last_rows].unsqueeze(1)).unsqueeze(2)
        batch_rows = (last_rows.unsqueeze(1) - back).clamp(min=0)
        earlier = (self._slots[last_rows].unsqueeze(1), positions % depth)
        ring_values, ring_scores = self._store.members[owner]
        members = (
            torch.where(in_batch, values[batch_rows], ring_values[earlier]),
            torch.where(in_batch, scores[batch_rows], ring_scores[earlier]),
        )
        ends = self._positions.new_tensor([span.end for span in self.spans for _ in range(span.length)])
        kept = (self._positions >= ends - depth).nonzero().squeeze(1)
        places = (self._slots[kept], self._positions[kept] % depth)
        ring_values[places], ring_scores[places] = values[kept], scores[kept]
        return members

    def append_main(self, owner: int, rows: Rows) -> None:
        """Writes the closed groups' compressed rows."""
        self._store.main[owner].write(self._closed(self._store.shape.owner_ratios[owner])[1], rows)

    def append_index(self, owner: int, rows: Rows) -> None:
        """Writes the closed groups' index keys."""
        self._store.index[owner].write(self._closed(self._store.shape.owner_ratios[owner])[1], rows)

    def read_main(self, owner: int, selected: Tensor) -> Tensor:
        """Compressed rows of each query's selection."""
        ratio = self._store.shape.owner_ratios[owner]
        addresses = self._store.plane_addresses(self._slots.unsqueeze(1), selected.clamp(min=0), ratio)
        return self._store.main[owner].read(addresses)

    def read_index(self, owner: int, spans: Sequence[Span]) -> Tensor:
        """Index keys of whole requests, padded to the longest with rows that are never visible."""
        ratio = self._store.shape.owner_ratios[owner]
        longest = max(span.end // ratio for span in spans)
        slots = torch.tensor([span.slot for span in spans]).unsqueeze(1)
        addresses = self._store.plane_addresses(slots, torch.arange(longest).expand(len(spans), -1), ratio)
        return self._store.index[owner].read(addresses)
