"""Rows of caches as the library reads them: addresses and strides of the layouts it knows."""

from flash41.kernels.cpu.library import StoredRecord
from flash41.numerics.stored_rows import PACKED, RowFormat, StoredRows

FORMATS = {
    RowFormat.FP32: 0,
    RowFormat.BF16: 1,
    RowFormat.FP8_32: 2,
    RowFormat.FP4_16: 3,
    RowFormat.FP4_32: 4,
    RowFormat.FP8_ROW: 5,
}
"""Numbers of the row formats in `src/stored.h`."""


def described(rows: StoredRows) -> StoredRecord | None:
    """The description of rows, or None for rows the library cannot find or would read in part."""
    layout = rows.layout
    if layout is None or layout.memory.device.type != "cpu":
        return None
    group = PACKED[layout.row_format][2] if layout.row_format in PACKED else None
    if group is not None and layout.channels % max(group, 32):
        return None
    start = layout.memory.data_ptr()
    return StoredRecord(
        codes=start + layout.codes_start,
        scales=start + layout.scales_start if layout.row_format in PACKED else None,
        format=FORMATS[layout.row_format],
        channels=layout.channels,
        inner=layout.inner,
        outer_bytes=layout.outer_bytes,
        row_bytes=layout.row_bytes,
        scale_outer_bytes=layout.scale_outer_bytes,
        scale_row_bytes=layout.scale_row_bytes,
        run=layout.run or layout.channels,
        run_bytes=layout.run_bytes,
    )
