"""Where everything lies in one allocation of N pages and M slots.

    | main pages 0 .. N-1 | index plane of each owner, N pages | STATE slots 0 .. M-1 |

Index keys lie outside the main pages so that a page id can be scaled to name a tile.  Main and index share page ids and
budget, not addresses.  Zones start at multiples of 256 bytes, STATE also at a multiple of the entry alignment.  For the
release (BF16, FP8) and three pages:

    main 0    index 1,966,080  2,016,768  2,067,456  2,118,144    STATE 2,220,032

All addresses are bytes from the start of the allocation.  Knows nothing of tensors.  spec: cache.md sections 1 and 2.
"""

import math
from dataclasses import dataclass

from flash41.cache.geometry import PoolGeometry, aligned
from flash41.cache.geometry_rules import ROW_ALIGNMENT


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Starts of the zones, and addresses in them."""

    geometry: PoolGeometry
    """Sizes of a page and of an entry."""
    num_pages: int
    """Pages of the pool."""
    num_slots: int
    """STATE entries."""
    index_starts: tuple[int, ...]
    """Start of each owner's index plane, in the order of the owners."""
    state_start: int
    """Start of the STATE zone."""

    @property
    def total_bytes(self) -> int:
        """Bytes of the allocation."""
        return self.state_start + self.num_slots * self.geometry.state_bytes

    @property
    def whole_rows(self) -> bool:
        """Whether every row is a whole row of one [rows, channels] view: then addresses divide by the row's bytes."""
        geometry, row = self.geometry, self.geometry.main_row_bytes
        starts = (geometry.page_main_bytes, geometry.state_bytes, self.state_start)
        return geometry.window_row_bytes == row and not any(start % row for start in starts)

    def main_address(self, owner: int, page_id: int, row: int) -> int:
        """Byte of main row `row` (0 .. rows_per_page - 1) of an owner in a page."""
        share = self.geometry.owner(owner)
        self._check_page(page_id, row, share.rows_per_page)
        return page_id * self.geometry.page_main_bytes + (share.main_row_offset + row) * self.geometry.main_row_bytes

    def index_start(self, owner: int) -> int:
        """Byte at which an owner's index plane begins."""
        return self.index_starts[self.geometry.owners.index(self.geometry.owner(owner))]

    def index_value_address(self, owner: int, page_id: int, row: int, byte: int = 0) -> int:
        """Byte of value byte `byte` of an index key."""
        share = self.geometry.owner(owner)
        self._check_page(page_id, row, share.rows_per_page)
        rows = self.num_pages * share.rows_per_page
        plane_row = page_id * share.rows_per_page + row
        return self.index_start(owner) + self.geometry.index.value_offset(plane_row, byte, rows)

    def index_scale_address(self, owner: int, page_id: int, row: int, byte: int = 0) -> int:
        """Byte of scale byte `byte` of an index key."""
        share = self.geometry.owner(owner)
        self._check_page(page_id, row, share.rows_per_page)
        rows = self.num_pages * share.rows_per_page
        plane_row = page_id * share.rows_per_page + row
        return self.index_start(owner) + self.geometry.index.scale_offset(plane_row, byte, rows)

    def index_tile_id(self, owner: int, page_id: int, tile: int) -> int:
        """Number of a page's tile in the owner's plane: page id scaled by tiles per page, plus the tile."""
        rows, height = self.geometry.owner(owner).rows_per_page, self.geometry.index.tile_rows
        self._check_page(page_id, tile * height, rows)
        return page_id * (rows // height) + tile

    def field_address(self, slot: int, name: str) -> int:
        """Byte at which a field of a slot's entry begins."""
        assert 0 <= slot < self.num_slots, f"slot {slot} of {self.num_slots}"
        return self.state_start + slot * self.geometry.state_bytes + self.geometry.state_field(name).offset_bytes

    def window_address(self, slot: int, layer_id: int, position: int) -> int:
        """Byte of the window row of a position in a layer's ring."""
        geometry = self.geometry
        assert 0 <= layer_id < geometry.num_layers, f"layer {layer_id} of {geometry.num_layers}"
        row = layer_id * geometry.window_ring + position % geometry.window_ring
        return self.field_address(slot, "window") + row * geometry.window_row_bytes

    def _check_page(self, page_id: int, row: int, rows_per_page: int) -> None:
        # A negative index would be legal in tensor indexing and would name another row in silence.
        assert 0 <= page_id < self.num_pages, f"page {page_id} of {self.num_pages}"
        assert 0 <= row < rows_per_page, f"row {row} of {rows_per_page}"


def placement(geometry: PoolGeometry, num_pages: int, num_slots: int) -> Placement:
    """Zones of a pool of `num_pages` pages and `num_slots` slots."""
    starts, end = [], num_pages * geometry.page_main_bytes
    for owner in geometry.owners:
        starts.append(aligned(end, ROW_ALIGNMENT))
        end = starts[-1] + num_pages * owner.index_bytes
    return Placement(
        geometry=geometry,
        num_pages=num_pages,
        num_slots=num_slots,
        index_starts=tuple(starts),
        state_start=aligned(end, math.lcm(geometry.alignment_bytes, ROW_ALIGNMENT)),
    )


def tagged_address(address: int, *, is_window: bool) -> int:
    """A byte address and the kind of its row in one int64, for packed pools whose two kinds of row differ."""
    return address << 1 | is_window
