"""Whole sequences in place of caches: what the layers of one forward may read, as tensors with gradients.

    sequence   0 0 0 0 0 | 1 1 1 1 1 | ...        R sequences of L tokens each, all from position 0
    window     rows of the forward themselves: query t sees t-W+1 .. t of its own sequence
    plane      the compressed rows this forward closes, sequence after sequence

Nothing is written into: a layer's rows are kept as they come, and every read is a gather.  Implements
`flash41.cache.views.BatchView`.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from flash41.cache.views import BatchView, ClosedGroups, Rows, Span, WindowRows
from flash41.errors import ProtocolError, complaint
from flash41.numerics.scaled import Quantized
from flash41.numerics.stored_rows import StoredRows


class WholeView:
    """`num_sequences` sequences of `length` tokens with windows of `window` positions."""

    def __init__(self, num_sequences: int, length: int, window: int) -> None:
        self.spans: Sequence[Span] = tuple(
            Span(slot=number, start=0, length=length, offset=number * length) for number in range(num_sequences)
        )
        self.length = length
        self.positions = torch.arange(length).repeat(num_sequences)
        self.surviving = torch.arange(num_sequences * length)
        first = (self.positions - window + 1).clamp(min=0)
        seen = first.unsqueeze(1) + torch.arange(window)
        self._counts = self.positions - first + 1
        starts = (self.surviving - self.positions).unsqueeze(1)
        self._index = torch.where(seen <= self.positions.unsqueeze(1), starts + seen, 0)
        self._groups: dict[int, ClosedGroups] = {}
        self._planes: dict[int, Tensor] = {}
        self._keys: dict[int, Tensor] = {}
        self.contexts: dict[int, Tensor] = {}
        """Context rows [T, d] of the draft stages, by layer."""

    def tail(self) -> tuple[BatchView, Tensor] | None:
        """Every layer computes every row."""
        return None

    def window(self, layer_id: int, rows: Rows) -> WindowRows:  # noqa: ARG002
        """The forward's own rows."""
        return WindowRows(rows=values(rows), index=self._index, counts=self._counts)

    def append_context(self, layer_id: int, rows: Rows) -> None:
        """Keeps the rows of a draft stage."""
        self.contexts[layer_id] = values(rows)

    def closed_groups(self, ratio: int) -> ClosedGroups:
        """Groups whose last token is among the tokens: all but an open one at the end of each sequence."""
        if ratio not in self._groups:
            last_rows = ((self.positions + 1) % ratio == 0).nonzero().squeeze(1)
            row_ids = self.positions[last_rows] // ratio
            self._groups[ratio] = ClosedGroups(last_rows=last_rows, row_ids=row_ids, positions=row_ids * ratio)
        return self._groups[ratio]

    def group_members(self, owner: int, values: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:  # noqa: ARG002
        """Members of pairs: groups of one token have no members to pool."""
        last_rows = self.closed_groups(2).last_rows
        members = torch.stack((last_rows - 1, last_rows), 1)
        return values[members], scores[members]

    def append_main(self, owner: int, rows: Rows) -> None:
        """Keeps an owner's plane."""
        self._planes[owner] = values(rows)

    def append_index(self, owner: int, rows: Rows) -> None:
        """Keeps an owner's index keys."""
        self._keys[owner] = values(rows)

    def plane(self, owner: int) -> Tensor:
        """[R * n, d]: an owner's compressed rows, sequence after sequence."""
        return self._planes[owner]

    def plane_starts(self, owner: int) -> Tensor:
        """int64 [T]: where the plane of each token's sequence begins."""
        per_sequence = len(self._planes[owner]) // len(self.spans)
        return torch.arange(len(self.spans)).repeat_interleave(self.length) * per_sequence

    def main_rows(self, owner: int) -> StoredRows:
        """An owner's plane."""
        return StoredRows.of(self._planes[owner])

    def main_numbers(self, owner: int, selected: Tensor) -> Tensor:
        """Where the rows of each query's selection stand in it."""
        return self.plane_starts(owner).unsqueeze(1) + selected.clamp(min=0)

    def index_keys(self, owner: int, spans: Sequence[Span], num_rows: int) -> Tensor:
        """Index keys [R, n, d] of all sequences, which are read together because they are of one length."""
        if len(spans) != len(self.spans):
            raise ProtocolError(complaint("sequences scored together", len(spans), f"all {len(self.spans)}"))
        keys = self._keys[owner]
        return keys.view(len(spans), -1, keys.shape[1])[:, :num_rows]


def values(rows: Rows) -> Tensor:
    """Rounded rows as a tensor; the training kernels round to values, so a record of codes is a mistake."""
    if isinstance(rows, Quantized):
        raise ProtocolError(complaint("rows of a training forward", "codes", "values", "use a pool of BF16 rows"))
    return rows
