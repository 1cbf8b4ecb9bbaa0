"""Rows of caches where they lie, as compiled kernels read them without unpacking a plane first.

    row r:      codes at  codes_start + (r div inner) * outer_bytes + (r mod inner) * row_bytes,  scales likewise
    channel c:  (c div run) * run_bytes + c mod run  bytes further, where the codes of a row lie in runs

    format    bytes of a row's codes    scales                       run
    FP32      4c                        none                         c
    BF16      2c                        none                         c
    FP8_32    c                         E8M0, one per 32 channels    c
    FP4_16    c/2                       E4M3, one per 16             c
    FP4_32    c/2                       E8M0, one per 32             c
    FP8_ROW   c                         one FP32                     c, or R in tiles of R rows

Whoever knows no layout calls `read`.  Both ways give the same bits, as a code times its scale has at most six
significant bits.  spec: cache.md section 2, number-formats.md sections 9 and 10.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

import torch
from torch import Tensor

from flash41.numerics.scaled import ElementFormat, ScaleFormat


class RowFormat(Enum):
    """How one row is stored."""

    FP32 = "fp32"
    BF16 = "bf16"
    FP4_16 = "fp4_16"
    FP8_32 = "fp8_32"
    FP4_32 = "fp4_32"
    FP8_ROW = "fp8_row"


PACKED: dict[RowFormat, tuple[ElementFormat, ScaleFormat, int | None]] = {
    RowFormat.FP4_16: (ElementFormat.E2M1, ScaleFormat.E4M3, 16),
    RowFormat.FP8_32: (ElementFormat.E4M3, ScaleFormat.E8M0, 32),
    RowFormat.FP4_32: (ElementFormat.E2M1, ScaleFormat.E8M0, 32),
    RowFormat.FP8_ROW: (ElementFormat.E4M3, ScaleFormat.FP32, None),
}
"""Element format, scale format and channels per scale (None = the whole row) of each packed format."""

PLAIN = {torch.float32: RowFormat.FP32, torch.bfloat16: RowFormat.BF16}
"""Formats of rows that are plain values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowLayout:
    """Where the bytes of rows lie."""

    memory: Tensor
    """What holds them; addresses count from its first byte."""
    row_format: RowFormat
    channels: int
    """Channels of a row."""
    inner: int
    """Rows of one record."""
    codes_start: int
    """Byte of the first row's codes."""
    outer_bytes: int
    """From one record to the next."""
    row_bytes: int
    """From one row of a record to the next."""
    scales_start: int = 0
    scale_outer_bytes: int = 0
    scale_row_bytes: int = 0
    """The same three for scales."""
    run: int = 0
    """Channels that lie together; 0 where all of a row do."""
    run_bytes: int = 0
    """From one run of a row to the next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRows:
    """Rows of a plane, by their numbers."""

    read: Callable[[Tensor], Tensor]
    """Rows [..., channels] at int64 numbers [...]: BF16, or FP32 where that is stored."""
    layout: RowLayout | None = None
    """Where they lie; None where that can only be asked of `read`."""

    @classmethod
    def of(cls, rows: Tensor) -> "StoredRows":
        """The rows of a tensor [n, channels] of BF16 or FP32."""
        layout = None
        if rows.dtype in PLAIN and rows.stride(-1) == 1:
            row_bytes = rows.stride(0) * rows.element_size()
            layout = RowLayout(
                memory=rows,
                row_format=PLAIN[rows.dtype],
                channels=rows.shape[1],
                inner=max(1, len(rows)),
                codes_start=0,
                outer_bytes=0,
                row_bytes=row_bytes,
            )
        return cls(read=rows.__getitem__, layout=layout)


@dataclass(frozen=True, slots=True, kw_only=True)
class PagedRows:
    """The first rows of several requests in one plane, each request with pages of its own.

    row j of request r has the number  pages[r, j div rows_per_page] * rows_per_page + j mod rows_per_page
    """

    rows: StoredRows
    pages: Tensor
    """int64 [requests, pages]."""
    rows_per_page: int
    """Rows of a page."""
    num_rows: int
    """Rows of every request that are meant; what lies behind a request's own is padding."""
    blocks: Tensor | None = None
    """int64 [requests, queries, n]: blocks of `block_size` rows that each query wants scores of, -1 names none.

    Scores of other rows may be anything.  None stands for all rows.
    """
    block_size: int = 0
    """Rows of a block."""

    @classmethod
    def of(cls, rows: Tensor) -> "PagedRows":
        """The rows of a tensor [requests, n, channels], a page for each request."""
        requests, num_rows, channels = rows.shape
        pages = torch.arange(requests).unsqueeze(1)
        stored = StoredRows.of(rows.reshape(requests * num_rows, channels))
        return cls(rows=stored, pages=pages, rows_per_page=max(1, num_rows), num_rows=num_rows)

    def read(self) -> Tensor:
        """All of them, [requests, num_rows, channels]."""
        row = torch.arange(self.num_rows)
        pages = self.pages[:, row // self.rows_per_page] if self.num_rows else self.pages[:, :0]
        return self.rows.read(pages * self.rows_per_page + row % self.rows_per_page)


Keys = Tensor | PagedRows
"""Index keys of several requests: [requests, n, channels], or where they lie."""


def as_keys(keys: Keys) -> Tensor:
    """Index keys as a tensor [requests, n, channels]."""
    return keys.read() if isinstance(keys, PagedRows) else keys


@dataclass(frozen=True, slots=True, kw_only=True)
class RowStack:
    """Rows of two places under common numbers: those of `own` first, those of `plane` behind them."""

    own: Tensor
    """[n, channels]: numbers 0 .. n-1."""
    plane: StoredRows
    """Row r of the plane has the number n + r."""

    def gathered(self, index: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
        """The rows that lists name, once for every naming, as a tensor, and the same lists with numbers into it.

        index int64 [T, n], of which the first counts[t] entries are real; others are any number.
        """
        size = len(self.own)
        real = torch.arange(index.shape[1]) < counts.unsqueeze(1)
        far = real & (index >= size)
        chosen = index[far] - size
        places = torch.where(real, index, 0)
        places[far] = size + torch.arange(len(chosen))
        return torch.cat((self.own, self.plane.read(chosen).to(self.own.dtype))), places


AttendedRows = Tensor | RowStack
"""Rows [n, channels] that queries attend to, or where they lie."""
