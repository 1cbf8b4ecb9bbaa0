"""A store whose planes are made of pages that requests take as they grow.

    plane address    table[slot, row_id div rows_per_page] * rows_per_page + row_id mod rows_per_page

One page id holds `block_size` tokens of all owners at once.  Which pages a request has is decided by whoever plans
steps (`cache.pages` counts them); the store only looks them up.  A batch whose requests lack pages is refused before
anything is written.  Entries of the table behind a slot's pages name some page of the pool: reads there are padding,
which nothing sees, and writes never go there.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from flash41.cache.placement import Placement
from flash41.cache.pool import Pool
from flash41.cache.store import Store
from flash41.cache.store_shape import StoreShape
from flash41.cache.views import Span
from flash41.errors import ProtocolError, complaint


class PagedStore(Store):
    """Cached rows of many requests in one pool."""

    def __init__(self, shape: StoreShape, places: Placement) -> None:
        super().__init__(shape)
        geometry = places.geometry
        # Rings are addressed by the shape and laid out by the geometry: another depth would be a silent wrong answer.
        sizes = (shape.num_slots, shape.num_layers, shape.ring, shape.channels)
        laid_out = (places.num_slots, geometry.num_layers, geometry.window_ring, geometry.channels)
        assert sizes == laid_out, f"slots, layers, ring and channels {sizes}, laid out for {laid_out}"
        assert shape.member_depth == geometry.compressor_ring, f"{shape.member_depth} != {geometry.compressor_ring}"
        ratios = {owner.layer_id: owner.ratio for owner in geometry.owners}
        assert dict(shape.owner_ratios) == ratios, f"owners {shape.owner_ratios}, laid out for {ratios}"
        self.pool = Pool(places)
        self.block_size = geometry.block_size
        self.windows, self.main, self.index = self.pool.windows, self.pool.main, self.pool.index
        self.members = self.pool.members
        self._table = torch.zeros(shape.num_slots, geometry.pages_for(shape.max_positions), dtype=torch.int64)
        self._assigned: list[tuple[int, ...]] = [()] * shape.num_slots

    def assign(self, slot: int, page_ids: Sequence[int]) -> None:
        """Gives a slot its pages, in order of the positions they hold."""
        pages = tuple(page_ids)
        if pages == self._assigned[slot]:
            return
        num_pages, width = self.pool.placement.num_pages, self._table.shape[1]
        # A negative index would be legal in tensor indexing and would name another page in silence.
        assert all(0 <= page_id < num_pages for page_id in pages), f"slot {slot}: pages {pages} of {num_pages}"
        assert len(pages) <= width, f"slot {slot}: {len(pages)} pages, {width} hold the longest request"
        self._assigned[slot] = pages
        self._table[slot, : len(pages)] = torch.tensor(pages, dtype=torch.int64)

    def reset(self, slot: int, position: int = 0) -> None:
        """Makes a slot empty and takes its pages, which may be another's by now."""
        super().reset(slot, position)
        self._assigned[slot] = ()

    def _check(self, spans: Sequence[Span]) -> None:
        super()._check(spans)
        for span in spans:
            held, needed = len(self._assigned[span.slot]), self.pool.placement.geometry.pages_for(span.end)
            if held < needed:
                thing = f"slot {span.slot}: pages for {span.end} positions"
                raise ProtocolError(complaint(thing, held, f"at least {needed}"))

    def plane_addresses(self, slots: Tensor, row_ids: Tensor, ratio: int) -> Tensor:
        """Rows through the slots' page tables."""
        rows_per_page = self.block_size // ratio
        return self._table[slots, row_ids // rows_per_page] * rows_per_page + row_ids % rows_per_page

    def plane_pages(self, slots: Sequence[int], ratio: int) -> tuple[Tensor, int]:
        """Rows of the page table."""
        return self._table[list(slots)], self.block_size // ratio
