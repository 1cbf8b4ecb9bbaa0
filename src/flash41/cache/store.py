"""What all stores share: slots with cursors, and a batch's view of rows whose addresses the store computes.

A store holds, per slot, a ring of window rows for each layer and, for owners that pool several tokens, a ring of FP32
members of the open group; and a main and an index plane for each owner.  Where a compressed row lies is the one thing
stores differ in: `plane_addresses`.  Rings are addressed here:

    window    slot * ring + position % ring
    members   (slot, position % depth)

The cursor of a slot is the number of positions it holds.  A span must start exactly there: anything else is an error
that names both, never a silent answer from the wrong state (spec: cache.md section 8).

A ring deeper than its window lets a request take back its last rows, as when drafts are rejected: nothing is cleared,
for the rows lie at future positions and are written again before they are visible.  With 5 drafts a window of 128 needs
133 rows, since the draft stages read 128 rows up to the last position that was kept:

    written ... 105 106 107 108 109 110        ring of 133: 110-132 = -22 ... 110
    kept    ... 105                            context of the next block: 105-127 = -22 ... 105
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor

from flash41.cache.store_shape import StoreShape
from flash41.cache.views import ClosedGroups, Rows, Span, WindowRows
from flash41.errors import CapacityError, ProtocolError, complaint
from flash41.numerics.stored_rows import PagedRows, StoredRows


class Buffer(Protocol):
    """Rows of one plane or of one layer's rings, addressed by flat row numbers."""

    @property
    def packs(self) -> bool:
        """Whether rows are kept as codes and scales."""
        ...

    @property
    def rows(self) -> StoredRows:
        """The rows where they lie, under the same numbers."""
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
        self._written = [0] * shape.num_slots
        self._origins = [0] * shape.num_slots

    @abstractmethod
    def plane_addresses(self, slots: Tensor, row_ids: Tensor, ratio: int) -> Tensor:
        """Flat row numbers, int64 and broadcast, of rows of the slots' requests in planes of `ratio`."""

    @abstractmethod
    def plane_pages(self, slots: Sequence[int], ratio: int) -> tuple[Tensor, int]:
        """Pages int64 [slots, n] of the slots' requests in planes of `ratio`, and rows per page."""

    def assign(self, slot: int, page_ids: Sequence[int]) -> None:  # noqa: B027  # most stores have no pages
        """Tells a store of pages which ones a slot has, in order of the positions they hold."""

    def reset(self, slot: int, position: int = 0) -> None:
        """Makes a slot empty; its rows are never read again before they are rewritten.  `position` comes next."""
        self.cursors[slot] = self._written[slot] = self._origins[slot] = position

    def rewind(self, slot: int, position: int) -> None:
        """Takes back the rows of a slot from `position` on; its next span starts there.

        ProtocolError where the rings have lost rows that the kept positions would read again, or never had them.
        """
        held, written = self.cursors[slot], max(self.cursors[slot], self._written[slot])
        least = max(self._origins[slot], written - self.shape.revocable)
        if not least <= position <= held:
            remedy = "rows that were overwritten cannot be taken back"
            raise ProtocolError(complaint(f"slot {slot}: position kept", position, f"from {least} to {held}", remedy))
        self.cursors[slot], self._written[slot] = position, written

    def view(self, spans: Sequence[Span]) -> "StoreView":
        """Access for one batch; checks every span, then moves the cursors behind the batch."""
        self._check(spans)
        view = StoreView(self, spans)
        for span in spans:
            self.cursors[span.slot] = span.end
            self._written[span.slot] = max(self._written[span.slot], span.end)
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
        self._slots, self._starts, self._ends, self._floors, self._shifts = self._of_rows(
            [(span.slot, span.start, span.end, span.window_start, span.start - span.offset) for span in spans]
        )
        self._positions = torch.arange(len(self._shifts)) + self._shifts
        self._plan_window()

    def _of_rows(self, of_spans: Sequence[tuple[int, ...]]) -> tuple[Tensor, ...]:
        """Numbers of each span as int64 [T] each, the same for all its rows."""
        lengths = torch.tensor([span.length for span in self.spans])
        return torch.tensor(of_spans).repeat_interleave(lengths, 0).unbind(1)

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
            shifts.append((total - first,))
            total += span.start - first
        self._prefix = prefixes[0] if len(prefixes) == 1 else torch.cat(prefixes)
        positions, first_seen = self._positions, torch.maximum(self._positions - (shape.window - 1), self._floors)
        seen = first_seen.unsqueeze(1) + torch.arange(shape.window)
        in_prefix, in_batch = self._of_rows(shifts)[0], total - self._shifts
        shift = torch.where(seen < self._starts.unsqueeze(1), in_prefix.unsqueeze(1), in_batch.unsqueeze(1))
        self._window_index = (seen + shift).masked_fill_(seen > positions.unsqueeze(1), 0)
        self._window_counts = positions - first_seen + 1
        # A chunk may be wider than the ring: only its last rows survive, and a ring address is written once.
        self.surviving = self._last_rows(shape.ring)
        self._ring_addresses = (self._slots * shape.ring + positions % shape.ring)[self.surviving]

    def _last_rows(self, count: int) -> Tensor:
        """Rows of the forward that are among the last `count` of their span."""
        if all(span.length <= count for span in self.spans):
            return torch.arange(len(self._positions))
        return (self._positions >= self._ends - count).nonzero().squeeze(1)

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
        kept = (
            rows.rows(self.surviving)
            if ring.packs and not isinstance(rows, Tensor)
            else stored.index_select(0, self.surviving)
        )
        ring.write(self._ring_addresses, kept)
        return WindowRows(
            rows=torch.cat((before, stored.to(before.dtype))), index=self._window_index, counts=self._window_counts
        )

    def append_context(self, layer_id: int, rows: Rows) -> None:
        """Writes the surviving tokens' rows of a draft stage."""
        self._store.windows[layer_id].write(self._ring_addresses, rows)

    def closed_groups(self, ratio: int) -> ClosedGroups:
        """Groups whose last token is in this batch."""
        return self._closed(ratio)[0]

    def _closed(self, ratio: int) -> tuple[ClosedGroups, Tensor]:
        if ratio not in self._groups:
            last_rows = self._closing_rows(ratio)
            row_ids = self._positions[last_rows] // ratio
            addresses = self._store.plane_addresses(self._slots[last_rows], row_ids, ratio)
            groups = ClosedGroups(last_rows=last_rows, row_ids=row_ids, positions=row_ids * ratio)
            self._groups[ratio] = (groups, addresses)
        return self._groups[ratio]

    def _closing_rows(self, ratio: int) -> Tensor:
        """Rows at positions p, ratio | p + 1, whose group is not there already."""
        rows = []
        for span in self.spans:
            first = max(span.start, span.planes_end)
            first += -(first + 1) % ratio
            rows.append(torch.arange(min(first, span.end) - span.start, span.length, ratio) + span.offset)
        return rows[0] if len(rows) == 1 else torch.cat(rows)

    def group_members(self, owner: int, values: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
        """Members of the closed groups, the first ones from the ring where they came with an earlier batch."""
        ratio, depth = self._store.shape.owner_ratios[owner], self._store.shape.member_depth
        members = values.new_empty(0, ratio, values.shape[1]), scores.new_empty(0, ratio, scores.shape[1])
        last_rows = self._closed(ratio)[0].last_rows
        ring_values, ring_scores = self._store.members[owner]
        if len(last_rows):
            back = torch.arange(ratio - 1, -1, -1)
            positions = self._positions[last_rows].unsqueeze(1) - back
            in_batch = (positions >= self._starts[last_rows].unsqueeze(1)).unsqueeze(2)
            batch_rows = (last_rows.unsqueeze(1) - back).clamp_(min=0)
            earlier = (self._slots[last_rows].unsqueeze(1), positions % depth)
            members = (
                torch.where(in_batch, values[batch_rows], ring_values[earlier]),
                torch.where(in_batch, scores[batch_rows], ring_scores[earlier]),
            )
        kept = self._last_rows(depth)
        places = (self._slots[kept], self._positions[kept] % depth)
        ring_values[places], ring_scores[places] = values[kept], scores[kept]
        return members

    def append_main(self, owner: int, rows: Rows) -> None:
        """Writes the closed groups' compressed rows."""
        self._store.main[owner].write(self._closed(self._store.shape.owner_ratios[owner])[1], rows)

    def append_index(self, owner: int, rows: Rows) -> None:
        """Writes the closed groups' index keys."""
        self._store.index[owner].write(self._closed(self._store.shape.owner_ratios[owner])[1], rows)

    def main_rows(self, owner: int) -> StoredRows:
        """An owner's compressed rows where they lie."""
        return self._store.main[owner].rows

    def main_numbers(self, owner: int, selected: Tensor) -> Tensor:
        """Flat row numbers of each query's selection."""
        ratio = self._store.shape.owner_ratios[owner]
        return self._store.plane_addresses(self._slots.unsqueeze(1), selected.clamp(min=0), ratio)

    def index_keys(self, owner: int, spans: Sequence[Span], num_rows: int) -> PagedRows:
        """Index keys of whole requests, whose padding is never visible."""
        slots = [span.slot for span in spans]
        pages, rows_per_page = self._store.plane_pages(slots, self._store.shape.owner_ratios[owner])
        keys = self._store.index[owner].rows
        return PagedRows(rows=keys, pages=pages, rows_per_page=rows_per_page, num_rows=num_rows)
