"""Rows of a plane or ring in the format they are stored in.

A row is written as the model rounded it, a `Quantized` record, or, where the profile rounds nothing, as a plain tensor.
A BF16 buffer keeps the dequantised value, a packed buffer keeps codes and scales; both read back the same bits, because
code * scale has at most six significant bits (spec: number-formats.md section 10).  So a pool format is storage, not
numerics.

    format    channels c    bytes per row         holds
    FP32      any           4c                    profile fp32
    BF16      any           2c                    the dequantised value
    FP4_16    c % 32 = 0    c/2 + c/16            compressed rows, E4M3 scale per 16
    FP8_32    c % 32 = 0    c + c/32              window rows, E8M0 scale per 32
    FP4_32    c % 32 = 0    c/2 + c/32            index keys, E8M0 scale per 32
    FP8_ROW   any           c + 4                 index keys of profile atom, one FP32 scale
"""

from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from flash41.config.run import PoolDtype, PoolFormat
from flash41.errors import CapacityError, complaint
from flash41.numerics.scaled import ElementFormat, Quantized, ScaleFormat
from flash41.numerics.stored_rows import PACKED, RowFormat, RowLayout, StoredRows


@dataclass(frozen=True, slots=True, kw_only=True)
class RowFormats:
    """Row formats of a pool's three kinds of row."""

    window: RowFormat
    main: RowFormat
    index: RowFormat


def row_formats(pool: PoolFormat) -> RowFormats:
    """How a pool of these dtypes stores its rows; a packed main pool packs its window rows too."""
    main = {PoolDtype.FP32: RowFormat.FP32, PoolDtype.BF16: RowFormat.BF16, PoolDtype.FP4: RowFormat.FP4_16}
    index = {
        PoolDtype.FP32: RowFormat.FP32,
        PoolDtype.BF16: RowFormat.BF16,
        PoolDtype.FP4: RowFormat.FP4_32,
        PoolDtype.FP8: RowFormat.FP8_ROW,
    }
    window = RowFormat.FP8_32 if pool.main is PoolDtype.FP4 else main[pool.main]
    return RowFormats(window=window, main=main[pool.main], index=index[pool.index])


def zeroed(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Memory of a cache; CapacityError where the system does not grant it."""
    try:
        return torch.zeros(shape, dtype=dtype)
    except (RuntimeError, MemoryError) as error:  # torch has no narrower class for it on CPU
        size = prod(shape) * dtype.itemsize
        remedy = "a shorter longest request, fewer requests at once or a smaller cache needs less"
        raise CapacityError(complaint("cache memory in bytes", size, "what the system grants", remedy)) from error


class RowCodec:
    """What one row of a format consists of: codes, and scales where the format packs."""

    def __init__(self, row_format: RowFormat, channels: int) -> None:
        self.row_format = row_format
        self.channels = channels
        self._packed = PACKED.get(row_format)
        if self._packed is None:
            self.code_dtype = torch.float32 if row_format is RowFormat.FP32 else torch.bfloat16
            self.code_shape, self.num_scales, self.scale_dtype = (channels,), 0, torch.uint8
            return
        element, scale, group = self._packed
        self._group = group or channels
        self.code_dtype, self.code_shape = torch.uint8, (channels // (2 if element is ElementFormat.E2M1 else 1),)
        self.num_scales = channels // self._group
        self.scale_dtype = torch.float32 if scale is ScaleFormat.FP32 else torch.uint8

    @property
    def packs(self) -> bool:
        """Whether rows are kept as codes and scales."""
        return self._packed is not None

    @property
    def code_bytes(self) -> int:
        """Bytes of a row's codes."""
        return self.code_shape[0] * self.code_dtype.itemsize

    @property
    def scale_bytes(self) -> int:
        """Bytes of a row's scales."""
        return self.num_scales * self.scale_dtype.itemsize

    def encode(self, rows: Tensor | Quantized) -> tuple[Tensor, Tensor | None]:
        """Codes and scales of rows [n, channels] as the model rounded them; nothing is rounded here but to BF16."""
        if self._packed is None:
            values = rows.dequantize(self.code_dtype) if isinstance(rows, Quantized) else rows
            return values.to(self.code_dtype), None
        element, scale, _ = self._packed
        assert isinstance(rows, Quantized), f"a packed {self.row_format.value} buffer was handed plain values"
        assert (rows.element, rows.scale, rows.group[1]) == (element, scale, self._group), (rows, self.row_format)
        return rows.codes, rows.scales

    def decode(self, codes: Tensor, scales: Tensor | None) -> Tensor:
        """Values [n, channels] of codes and scales: BF16, or FP32 where that is stored."""
        if self._packed is None:
            return codes
        element, scale, _ = self._packed
        assert scales is not None, f"a {self.row_format.value} row has scales"
        packed = Quantized(codes=codes, scales=scales, element=element, scale=scale, group=(1, self._group))
        return packed.dequantize(torch.bfloat16)


class RowBuffer:
    """`num_rows` rows of `channels` values, addressed by flat row numbers."""

    def __init__(self, num_rows: int, channels: int, row_format: RowFormat) -> None:
        self.codec = RowCodec(row_format, channels)
        self._codes = zeroed((num_rows, *self.codec.code_shape), self.codec.code_dtype)
        self._scales = zeroed((num_rows, self.codec.num_scales), self.codec.scale_dtype)

    @classmethod
    def over(cls, codes: Tensor, scales: Tensor, codec: "RowCodec") -> "RowBuffer":
        """A buffer whose rows lie in tensors that somebody else allocated: codes [n, c] and scales [n, s]."""
        buffer = cls.__new__(cls)
        buffer.codec, buffer._codes, buffer._scales = codec, codes, scales
        return buffer

    @property
    def packs(self) -> bool:
        """Whether rows are kept as codes and scales."""
        return self.codec.packs

    @property
    def rows(self) -> StoredRows:
        """The rows where they lie."""
        codes, scales = self._codes, self._scales
        layout = RowLayout(
            memory=codes,
            row_format=self.codec.row_format,
            channels=self.codec.channels,
            inner=max(1, self.num_rows),
            codes_start=0,
            outer_bytes=0,
            row_bytes=codes.stride(0) * codes.element_size(),
            scales_start=scales.data_ptr() - codes.data_ptr() if self.codec.num_scales else 0,
            scale_row_bytes=scales.stride(0) * scales.element_size() if self.codec.num_scales else 0,
        )
        return StoredRows(read=self.read, layout=layout)

    @property
    def num_rows(self) -> int:
        """Rows this buffer has room for."""
        return self._codes.shape[0]

    @property
    def num_bytes(self) -> int:
        """Bytes of the tensors behind this buffer."""
        return self._codes.nbytes + self._scales.nbytes

    def write(self, addresses: Tensor, rows: Tensor | Quantized) -> None:
        """Stores rows [n, channels] at int64 addresses [n], which must be distinct."""
        codes, scales = self.codec.encode(rows)
        self._codes[addresses] = codes
        if scales is not None:
            self._scales[addresses] = scales

    def read(self, addresses: Tensor) -> Tensor:
        """Rows [..., channels] at int64 addresses [...]: BF16, or FP32 from an FP32 buffer."""
        flat = addresses.reshape(-1)
        codes = self._codes.index_select(0, flat)
        scales = self._scales.index_select(0, flat) if self.codec.num_scales else None
        return self.codec.decode(codes, scales).view(*addresses.shape, self.codec.channels)
