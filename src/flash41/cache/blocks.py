"""The draft stages' view of a store: the context of each request, and its block of rows that is never kept.

    rows      context of request 0 | context of request 1 | ... | block 0 | block 1 | ...
    query     every row of a block reads its request's context, positions max(0, P-W+1) .. P, and its whole block

P is the newest cached position.  The window is not shifted from row to row and nothing is masked: the block is
bidirectional.  Block rows enter no ring, so drafting twice gives the same and a rejected block leaves nothing.
spec: dspark.md section 3.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from flash41.cache.store import Store, StoreView
from flash41.cache.views import Rows, Span, WindowRows
from flash41.errors import ProtocolError, complaint


class DraftView(StoreView):
    """Blocks of `width` rows behind the newest position of each slot; implements `cache.views.BlockView`.

    ProtocolError for a slot that holds nothing: the first block follows a prompt.
    """

    def __init__(self, store: Store, slots: Sequence[int], width: int) -> None:
        empty = [slot for slot in slots if store.cursors[slot] == 0]
        if empty:
            raise ProtocolError(complaint("slots to draft for", empty, "slots that hold at least one position"))
        starts = [store.cursors[slot] for slot in slots]
        super().__init__(
            store,
            [
                Span(slot=slot, start=start, length=width, offset=number * width)
                for number, (slot, start) in enumerate(zip(slots, starts, strict=True))
            ],
        )

    def _plan_window(self) -> None:
        """Ring addresses of all contexts, and the list of rows of every query; the same for every stage."""
        shape = self._store.shape
        firsts = [max(0, span.start - shape.window) for span in self.spans]
        self._prefix = torch.cat([
            span.slot * shape.ring + torch.arange(first, span.start) % shape.ring
            for span, first in zip(self.spans, firsts, strict=True)
        ])  # fmt: skip
        lists, before, total = [], 0, len(self._prefix)
        for span, first in zip(self.spans, firsts, strict=True):
            context = before + torch.arange(span.start - first)
            block = total + span.offset + torch.arange(span.length)
            seen = torch.nn.functional.pad(torch.cat((context, block)), (0, shape.window - len(context)))
            lists.append(seen.expand(span.length, -1))
            before += len(context)
        self.surviving = self._ring_addresses = self._positions[:0]
        self._window_index = torch.cat(lists)
        self._window_counts = self._positions.new_tensor([
            span.start - first + span.length
            for span, first in zip(self.spans, firsts, strict=True)
            for _ in range(span.length)
        ])  # fmt: skip

    def context(self, layer_id: int) -> Tensor:
        """Context rows of a stage in their stored form."""
        return self._store.windows[layer_id].read(self._prefix)

    def window(self, layer_id: int, rows: Rows) -> WindowRows:
        """Contexts and blocks; nothing is appended."""
        before = self.context(layer_id)
        stored = rows if isinstance(rows, Tensor) else rows.dequantize(before.dtype)
        return WindowRows(
            rows=torch.cat((before, stored.to(before.dtype))), index=self._window_index, counts=self._window_counts
        )
