"""Where the bytes of an index key lie inside an owner's index plane.

A plane holds the keys of all pages of one owner, page after page, so that a page id times a stride names a tile.  Rows
are numbered through the plane: row = page_id * rows_per_page + row in page.

    format      bytes per row    arrangement
    FP32, BF16  4c, 2c           PLAIN       row after row
    FP4         c/2 + c/32       TWO_PLANES  value bytes of all rows, then E8M0 bytes of all rows
    FP8         c + 4            TILES       tiles of R rows: R*c value bytes, then R FP32 scales

In a tile the value byte of (row, channel) lies at (channel div R) * R*R + row * R + channel mod R: R channels of one
row, then the same channels of the next row.  For R = 8 and 128 channels a tile has 1056 bytes, as many as eight rows of
132 would have, so that a reader with another layout gets wrong data, not an error.
spec: number-formats.md section 9, cache.md section 2.
"""

import enum
from dataclasses import dataclass

from flash41.config.run import PoolDtype


class IndexArrangement(enum.Enum):
    """Order of value and scale bytes in a plane."""

    PLAIN = "plain"
    """Row after row, no scales."""
    TWO_PLANES = "two planes"
    """All values, then all scales."""
    TILES = "tiles"
    """Interleaved values of a few rows, then their scales."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexLayout:
    """Bytes of index keys of one format and width."""

    arrangement: IndexArrangement
    """Order of bytes."""
    channels: int
    """Channels of a key."""
    value_bytes: int
    """Value bytes per row."""
    scale_bytes: int
    """Scale bytes per row."""
    tile_rows: int
    """Rows that a candidate block names together; the tile height where rows are tiled."""

    @property
    def row_bytes(self) -> int:
        """Bytes a row costs, scales included."""
        return self.value_bytes + self.scale_bytes

    @property
    def tile_bytes(self) -> int:
        """Bytes that the rows of one tile cost."""
        return self.tile_rows * self.row_bytes

    def value_offset(self, row: int, byte: int, num_rows: int) -> int:
        """Byte in a plane of `num_rows` rows at which value byte `byte` of a row lies."""
        assert 0 <= row < num_rows, f"row {row} of {num_rows}"
        assert 0 <= byte < self.value_bytes, f"value byte {byte} of {self.value_bytes}"
        if self.arrangement is not IndexArrangement.TILES:
            stride = self.value_bytes if self.arrangement is IndexArrangement.TWO_PLANES else self.row_bytes
            return row * stride + byte
        height = self.tile_rows
        tile, row_in_tile = divmod(row, height)
        column, channel = divmod(byte, height)
        return tile * self.tile_bytes + column * height * height + row_in_tile * height + channel

    def scale_offset(self, row: int, byte: int, num_rows: int) -> int:
        """Byte in a plane of `num_rows` rows at which scale byte `byte` of a row lies."""
        assert 0 <= row < num_rows, f"row {row} of {num_rows}"
        assert 0 <= byte < self.scale_bytes, f"scale byte {byte} of {self.scale_bytes}"
        if self.arrangement is IndexArrangement.TWO_PLANES:
            return num_rows * self.value_bytes + row * self.scale_bytes + byte
        tile, row_in_tile = divmod(row, self.tile_rows)
        values = self.tile_rows * self.value_bytes
        return tile * self.tile_bytes + values + row_in_tile * self.scale_bytes + byte


def index_layout(dtype: PoolDtype, channels: int, tile_rows: int) -> IndexLayout:
    """How keys of `channels` channels are laid out in a pool of this dtype."""
    arrangement, value_bytes, scale_bytes = {
        PoolDtype.FP32: (IndexArrangement.PLAIN, 4 * channels, 0),
        PoolDtype.BF16: (IndexArrangement.PLAIN, 2 * channels, 0),
        PoolDtype.FP4: (IndexArrangement.TWO_PLANES, channels // 2, channels // 32),
        PoolDtype.FP8: (IndexArrangement.TILES, channels, 4),
    }[dtype]
    return IndexLayout(
        arrangement=arrangement,
        channels=channels,
        value_bytes=value_bytes,
        scale_bytes=scale_bytes,
        tile_rows=tile_rows,
    )
