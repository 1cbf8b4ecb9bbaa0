"""A store that gives every slot its own contiguous rows: the simplest thing that satisfies `cache.views`.

    plane address    slot * capacity + row_id,      capacity = ceil(max_positions / ratio)

For one request at a time, as in a trace; many requests share the pages of `cache.paged`.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from flash41.cache.rows import RowBuffer, RowFormats
from flash41.cache.store import Store
from flash41.cache.store_shape import StoreShape


class ContiguousStore(Store):
    """Cached rows of `num_slots` requests, each with room for `max_positions`."""

    def __init__(self, shape: StoreShape, formats: RowFormats) -> None:
        super().__init__(shape)
        slots = shape.num_slots
        self.windows = [RowBuffer(slots * shape.ring, shape.channels, formats.window) for _ in range(shape.num_layers)]
        self.main, self.index, self.members = {}, {}, {}
        for owner, ratio in shape.owner_ratios.items():
            rows = slots * self.capacity(ratio)
            self.main[owner] = RowBuffer(rows, shape.channels, formats.main)
            self.index[owner] = RowBuffer(rows, shape.index_channels, formats.index)
            if ratio > 1:
                size = (slots, shape.member_depth, shape.channels)
                self.members[owner] = (torch.zeros(size), torch.zeros(size))

    def capacity(self, ratio: int) -> int:
        """Rows of one slot's plane, at least one."""
        return max(1, -(-self.shape.max_positions // ratio))

    def plane_addresses(self, slots: Tensor, row_ids: Tensor, ratio: int) -> Tensor:
        """Each slot's rows follow each other."""
        return slots * self.capacity(ratio) + row_ids

    def plane_pages(self, slots: Sequence[int], ratio: int) -> tuple[Tensor, int]:
        """One page each."""
        return torch.tensor(slots).unsqueeze(1), self.capacity(ratio)
