"""The tensors of a pool: one allocation, and every zone of it as buffers of rows.

    | main pages | index plane of each owner | STATE slots |         bytes, placed by `cache.placement`

Nothing is copied: a buffer addresses rows inside the allocation by strides.  Row numbers are flat,

    main, index    page_id * rows_per_page + row in page
    window         slot * ring + position % ring
    members        (slot, position % depth)

so whoever computes addresses never sees a byte.  spec: cache.md sections 1 and 2, number-formats.md section 9.
"""

import torch
from torch import Tensor

from flash41.cache.geometry import OwnerGeometry
from flash41.cache.index_layout import IndexArrangement, IndexLayout
from flash41.cache.placement import Placement
from flash41.cache.rows import RowBuffer, RowCodec, RowFormats, row_formats, zeroed
from flash41.cache.store import Buffer
from flash41.cache.views import Rows
from flash41.numerics.stored_rows import RowLayout, StoredRows


class StridedRows:
    """Rows inside a larger record: [outer, inner, bytes of a row], the last dim dense; codes before scales."""

    def __init__(self, memory: Tensor, codec: RowCodec) -> None:
        # Rows that do not pack are values from end to end.
        self._memory = memory if codec.packs else memory.view(codec.code_dtype)
        self._inner = memory.shape[1]
        self._codec = codec

    @property
    def packs(self) -> bool:
        """Whether rows are kept as codes and scales."""
        return self._codec.packs

    @property
    def rows(self) -> StoredRows:
        """The rows where they lie."""
        memory, size = self._memory, self._memory.element_size()
        layout = RowLayout(
            memory=memory,
            row_format=self._codec.row_format,
            channels=self._codec.channels,
            inner=self._inner,
            codes_start=0,
            outer_bytes=memory.stride(0) * size,
            row_bytes=memory.stride(1) * size,
            scales_start=self._codec.code_bytes,
            scale_outer_bytes=memory.stride(0) * size,
            scale_row_bytes=memory.stride(1) * size,
        )
        return StoredRows(read=self.read, layout=layout)

    def write(self, addresses: Tensor, rows: Rows) -> None:
        """Stores rows [n, channels] at flat row numbers outer * inner + row."""
        stored, scales = self._codec.encode(rows)
        if scales is not None:
            stored = torch.cat((stored.contiguous(), scales.contiguous().view(torch.uint8)), -1)
        self._memory[addresses // self._inner, addresses % self._inner] = stored

    def read(self, addresses: Tensor) -> Tensor:
        """Rows [..., channels] at flat row numbers."""
        stored = self._memory[addresses // self._inner, addresses % self._inner]
        if not self._codec.packs:
            return stored
        cut = self._codec.code_bytes
        flat = stored.flatten(0, -2)
        return self._codec.decode(flat[:, :cut], flat[:, cut:]).view(*addresses.shape, self._codec.channels)


class TiledRows:
    """FP8 index keys in tiles of R rows: interleaved values, then R FP32 scales (`cache.index_layout`)."""

    def __init__(self, memory: Tensor, layout: IndexLayout, codec: RowCodec) -> None:
        height, channels = layout.tile_rows, layout.channels
        self._memory = memory
        self._scales = memory.view(torch.float32)
        self._height = height
        self._tile_bytes = layout.tile_bytes
        self._value_bytes = height * layout.value_bytes
        self._codec = codec
        channel = torch.arange(channels)
        # Byte of each channel of each row inside a tile: (c div R) * R*R + row * R + c mod R.
        self._offsets = (
            (channel // height) * height * height + channel % height + torch.arange(height)[:, None] * height
        )

    @property
    def packs(self) -> bool:
        """Whether rows are kept as codes and scales: always."""
        return True

    @property
    def rows(self) -> StoredRows:
        """The rows where they lie."""
        height = self._height
        layout = RowLayout(
            memory=self._memory,
            row_format=self._codec.row_format,
            channels=self._codec.channels,
            inner=height,
            codes_start=0,
            outer_bytes=self._tile_bytes,
            row_bytes=height,
            scales_start=self._value_bytes,
            scale_outer_bytes=self._tile_bytes,
            scale_row_bytes=4,
            run=height,
            run_bytes=height * height,
        )
        return StoredRows(read=self.read, layout=layout)

    def write(self, addresses: Tensor, rows: Rows) -> None:
        """Stores rows [n, channels] at row numbers of the plane."""
        codes, scales = self._codec.encode(rows)
        assert scales is not None, "tiled rows have scales"
        bytes_, words = self._places(addresses)
        self._memory[bytes_] = codes
        self._scales[words] = scales.squeeze(-1)

    def read(self, addresses: Tensor) -> Tensor:
        """Rows [..., channels] at row numbers of the plane."""
        bytes_, words = self._places(addresses.reshape(-1))
        values = self._codec.decode(self._memory[bytes_], self._scales[words].unsqueeze(-1))
        return values.view(*addresses.shape, self._codec.channels)

    def _places(self, flat: Tensor) -> tuple[Tensor, Tensor]:
        """Byte numbers [n, channels] of the values, and FP32 word numbers [n] of the scales."""
        row = flat % self._height
        tile = (flat // self._height) * self._tile_bytes
        return tile.unsqueeze(1) + self._offsets[row], (tile + self._value_bytes) // 4 + row


class Pool:
    """One allocation of pages and STATE slots."""

    def __init__(self, places: Placement) -> None:
        self.placement = places
        self.memory = zeroed((places.total_bytes,), torch.uint8)
        geometry = places.geometry
        formats = row_formats(geometry.pool)
        self.windows: list[Buffer] = [self._window(layer_id, formats) for layer_id in range(geometry.num_layers)]
        self.main: dict[int, Buffer] = {owner.layer_id: self._main(owner, formats) for owner in geometry.owners}
        self.index: dict[int, Buffer] = {owner.layer_id: self._index(owner, formats) for owner in geometry.owners}
        self.members = {
            owner.layer_id: (self._members("compress_kv", number), self._members("compress_score", number))
            for number, owner in enumerate(geometry.owners)
            if owner.ratio > 1
        }

    def window_bytes(self) -> Tensor:
        """The windows of all slots as uint8 [slots, layers, ring, bytes of a row]; a view."""
        geometry, places = self.placement.geometry, self.placement
        row = geometry.window_row_bytes
        size = (places.num_slots, geometry.num_layers, geometry.window_ring, row)
        strides = (geometry.state_bytes, geometry.window_ring * row, row, 1)
        return self.memory.as_strided(size, strides, places.field_address(0, "window"))

    def _window(self, layer_id: int, formats: RowFormats) -> Buffer:
        geometry, places = self.placement.geometry, self.placement
        size = (places.num_slots, geometry.window_ring, geometry.window_row_bytes)
        start = places.field_address(0, "window") + layer_id * geometry.window_ring * geometry.window_row_bytes
        strides = (geometry.state_bytes, geometry.window_row_bytes, 1)
        return StridedRows(self.memory.as_strided(size, strides, start), RowCodec(formats.window, geometry.channels))

    def _main(self, owner: OwnerGeometry, formats: RowFormats) -> Buffer:
        geometry = self.placement.geometry
        size = (self.placement.num_pages, owner.rows_per_page, geometry.main_row_bytes)
        strides = (geometry.page_main_bytes, geometry.main_row_bytes, 1)
        start = owner.main_row_offset * geometry.main_row_bytes
        return StridedRows(self.memory.as_strided(size, strides, start), RowCodec(formats.main, geometry.channels))

    def _index(self, owner: OwnerGeometry, formats: RowFormats) -> Buffer:
        layout = self.placement.geometry.index
        num_rows = self.placement.num_pages * owner.rows_per_page
        start = self.placement.index_start(owner.layer_id)
        plane = self.memory[start : start + num_rows * layout.row_bytes]
        codec = RowCodec(formats.index, layout.channels)
        if layout.arrangement is IndexArrangement.TILES:
            return TiledRows(plane, layout, codec)
        cut = num_rows * layout.value_bytes
        values = plane[:cut].view(num_rows, layout.value_bytes).view(codec.code_dtype)
        return RowBuffer.over(values, plane[cut:].view(num_rows, layout.scale_bytes), codec)

    def _members(self, name: str, number: int) -> Tensor:
        geometry, places = self.placement.geometry, self.placement
        size = (places.num_slots, geometry.compressor_ring, geometry.channels)
        strides = (geometry.state_bytes // 4, geometry.channels, 1)
        start = places.field_address(0, name) // 4 + number * geometry.compressor_ring * geometry.channels
        return self.memory.view(torch.float32).as_strided(size, strides, start)
