"""Draft blocks over whole sequences: anchors inside a forward, each with its context and its block of rows.

    anchor a of a sequence   rows a .. a+g-1, ids x_a and noise, predict tokens a+1 .. a+g
    keys of every row        context rows max(0, a-W) .. a-1 of the target, then all g rows of the block

The blocks of all anchors are one forward, as in the engine.  Teacher forcing: draft k is told the true token before it.
spec: dspark.md sections 3 and 10.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from flash41.cache.views import Rows, Span, WindowRows
from flash41.model.draft_heads import Drafts
from flash41.model.drafter import Drafter
from training.model.build import with_gradients
from training.model.view import WholeView, values


class AnchorView(WholeView):
    """Blocks behind anchors, flat int64 rows [n] of the forward whose context `fed` holds."""

    def __init__(self, fed: WholeView, anchors: Tensor, block_size: int, window: int) -> None:
        self.contexts = fed.contexts
        positions = fed.positions[anchors]
        self.spans: Sequence[Span] = tuple(
            Span(slot=number, start=int(position), length=block_size, offset=number * block_size)
            for number, position in enumerate(positions)
        )
        self.surviving = anchors[:0]
        num_seen = positions.clamp(max=window)
        slot = torch.arange(window + block_size)
        context = (anchors - num_seen).unsqueeze(1) + slot
        block = len(fed.positions) + torch.arange(len(anchors)).unsqueeze(1) * block_size + slot - num_seen.unsqueeze(1)
        index = torch.where(slot < num_seen.unsqueeze(1), context, block)
        counts = num_seen + block_size
        self._index = torch.where(slot < counts.unsqueeze(1), index, 0).repeat_interleave(block_size, 0)
        self._counts = counts.repeat_interleave(block_size)

    def context(self, layer_id: int) -> Tensor:
        """Context rows of a stage."""
        return self.contexts[layer_id]

    def window(self, layer_id: int, rows: Rows) -> WindowRows:
        """Contexts of all sequences, then the blocks."""
        return WindowRows(
            rows=torch.cat((self.contexts[layer_id], values(rows))), index=self._index, counts=self._counts
        )


def drafted(drafter: Drafter, fed: WholeView, taps: Tensor, ids: Tensor, anchors: Tensor, window: int) -> Drafts:
    """Teacher-forced drafts behind anchors, flat rows int64 [n] of the forward that left `taps`; ids [R * L].

    The block of an anchor must lie inside its sequence.
    """
    with_gradients(Drafter.feed)(drafter, taps, fed.positions, fed)
    view = AnchorView(fed, anchors, drafter.block_size, window)

    def told(k: int, _: Tensor) -> Tensor:
        return ids[anchors + k + 1]

    drafts: Drafts = with_gradients(Drafter.forward)(drafter, ids[anchors], view, told)
    return drafts
