"""What planes of a view hold, as tensors."""

from collections.abc import Sequence

from torch import Tensor

from flash41.cache.views import BatchView, Span
from flash41.numerics.stored_rows import as_keys


def read_main(view: BatchView, owner: int, selected: Tensor) -> Tensor:
    """Compressed rows [T, k, d] of selections [T, k]."""
    return view.main_rows(owner).read(view.main_numbers(owner, selected))


def read_index(view: BatchView, owner: int, spans: Sequence[Span], num_rows: int) -> Tensor:
    """The first index keys [spans, num_rows, d] of each request."""
    return as_keys(view.index_keys(owner, spans, num_rows))
