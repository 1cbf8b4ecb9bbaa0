"""A store whose planes are made of pages that requests take as they grow.

    plane address    table[slot, row_id div rows_per_page] * rows_per_page + row_id mod rows_per_page

One page id holds `block_size` tokens of all owners at once.  Which pages a request has is decided by whoever plans
steps (`cache.pages` counts them); the store only looks them up.  An entry of the table that was never assigned names
page 0: reads there are padding, which nothing sees, and writes never go there.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from flash41.cache.placement import Placement
from flash41.cache.pool import Pool
from flash41.cache.store import Store, StoreShape
from flash41.errors import ProtocolError, complaint


class PagedStore(Store):
    """Cached rows of many requests in one pool."""

    def __init__(self, shape: StoreShape, places: Placement) -> None:
        super().__init__(shape)
        self.pool = Pool(places)
        self.block_size = places.geometry.block_size
        self.windows, self.main, self.index = self.pool.windows, self.pool.main, self.pool.index
        self.members = self.pool.members
        self._table = torch.zeros(
            shape.num_slots, max(1, places.geometry.pages_for(shape.max_positions)), dtype=torch.int64
        )
        self._assigned: list[tuple[int, ...]] = [()] * shape.num_slots

    def assign(self, slot: int, page_ids: Sequence[int]) -> None:
        """Gives a slot its pages, in order of the positions they hold."""
        pages = tuple(page_ids)
        if pages == self._assigned[slot]:
            return
        self._assigned[slot] = pages
        self._table[slot, : len(pages)] = torch.tensor(pages, dtype=torch.int64)

    def require_pages(self, slot: int, end: int) -> None:
        """Raises ProtocolError unless the slot has pages for all positions before `end`."""
        needed = self.pool.placement.geometry.pages_for(end)
        if len(self._assigned[slot]) < needed:
            thing = f"slot {slot}: pages for {end} positions"
            raise ProtocolError(complaint(thing, len(self._assigned[slot]), f"at least {needed}"))

    def plane_addresses(self, slots: Tensor, row_ids: Tensor, ratio: int) -> Tensor:
        """Rows through the slots' page tables."""
        rows_per_page = self.block_size // ratio
        return self._table[slots, row_ids // rows_per_page] * rows_per_page + row_ids % rows_per_page
