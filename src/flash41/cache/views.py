"""What the layers of one batch may read and append, and the two protocols a store implements.

A batch is a list of spans, each the next rows of one request.  Rows of the forward are numbered from span to span.
A store hands out one `BatchView` per batch; the model asks it for a layer's window, for an owner's plane and for
an owner's open group, and never learns where a row lies.  Writing order inside a layer (spec: cache.md section 6):

    window   read the ring and the batch's own rows together, then append the batch's rows to the ring
    context  append the surviving rows to a draft stage's ring, which no row of the batch reads
    plane    append the rows this batch closes, then score and read: the newest row is visible to its own token
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from flash41.numerics.scaled import Quantized
from flash41.numerics.stored_rows import Keys, StoredRows

Rows = Tensor | Quantized
"""Rows as the model rounded them: a record of codes and scales, or plain values where nothing is rounded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """The next rows of one request: positions from `start` on, rows of the forward from `offset` on."""

    slot: int
    """Where the request's state lives."""
    start: int
    """Position of the first row; equals the number of rows the request has cached."""
    length: int
    """Rows of this span, at least one."""
    offset: int
    """First row of the span in the flat forward."""
    window_start: int = 0
    """First position whose window rows may be read; above 0 where a prefix is replayed."""
    planes_end: int = 0
    """Position up to which compressed rows are there already; they are not written again."""
    tail_start: int = 0
    """First position that layers behind the last owner compute; above 0 with bounded decoder replay."""

    @property
    def end(self) -> int:
        """Position behind the last row."""
        return self.start + self.length


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowRows:
    """All window rows a layer's queries may see, and which of them each query sees."""

    rows: Tensor
    """[R, d]: ring rows before the batch, then the batch's own rows in their stored (rounded) form."""
    index: Tensor
    """int64 [T, window]: rows of each query, ascending by position, filled from the left."""
    counts: Tensor
    """int64 [T]: how many of them are real, min(position + 1, window)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedGroups:
    """The compressed rows that this batch completes in planes of one ratio, in order of their last token."""

    last_rows: Tensor
    """int64 [n]: row of the forward that holds the group's last token."""
    row_ids: Tensor
    """int64 [n]: number of the compressed row inside its request's plane, position // ratio."""
    positions: Tensor
    """int64 [n]: position of the group's first token, at which the row is rotated."""


class BatchView(Protocol):
    """One batch's access to cached state."""

    spans: Sequence[Span]
    surviving: Tensor
    """int64 [n]: rows of the forward that rings still hold behind it, the last ones of each span."""

    def tail(self) -> "tuple[BatchView, Tensor] | None":
        """Access for the rows from each span's `tail_start` on, and their int64 numbers in the forward.

        None where these are all rows, and see all they would see anyway.
        """
        ...

    def window(self, layer_id: int, rows: Rows) -> WindowRows:
        """Appends the batch's window rows [T, d] of a layer and returns what its queries see."""
        ...

    def append_context(self, layer_id: int, rows: Rows) -> None:
        """Writes the rows [n, d] of the surviving tokens into the ring of a draft stage."""
        ...

    def closed_groups(self, ratio: int) -> ClosedGroups:
        """Compressed rows completed by this batch in planes of `ratio`."""
        ...

    def group_members(self, owner: int, values: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
        """FP32 [n, ratio, d] values and scores of the closed groups' tokens; keeps the members of groups still open."""
        ...

    def append_main(self, owner: int, rows: Rows) -> None:
        """Writes the closed groups' compressed rows [n, d] into an owner's main plane."""
        ...

    def append_index(self, owner: int, rows: Rows) -> None:
        """Writes the closed groups' index keys [n, index_d] into an owner's index plane."""
        ...

    def main_rows(self, owner: int) -> StoredRows:
        """An owner's compressed rows where they lie."""
        ...

    def main_numbers(self, owner: int, selected: Tensor) -> Tensor:
        """Numbers int64 [T, k] in `main_rows` of selections [T, k]; where a selection is -1, that of any row."""
        ...

    def index_keys(self, owner: int, spans: Sequence[Span], num_rows: int) -> Keys:
        """The first `num_rows` index keys of each request; behind a shorter request's own there is padding."""
        ...


class BlockView(BatchView, Protocol):
    """What the draft stages may read of the requests they draft for; a block leaves nothing behind.

    The spans are the blocks, each starting behind the newest cached row.  `window` gives every row of a block the
    request's context and the whole block, and appends nothing.
    """

    def context(self, layer_id: int) -> Tensor:
        """[n, d]: the context rows of a stage, request after request, ascending by position."""
        ...
