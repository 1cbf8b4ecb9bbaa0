"""Rows of an n-gram table, read where they lie and dequantised one gather at a time.

    weight [rows, head_dim] E4M3, scale [rows, head_dim/32] E8M0, one scale per 32 channels of one row:
    value(r, i) = bf16( e4m3(weight[r, i]) * 2^(scale[r, i div 32] - 127) )

A release table is 91.6 GiB of codes; as FP32 it would be 393 GB.  So only rows that are asked for are touched.
Byte offsets reach 9.8e10: indices are int64.  Who reads and dequantises the rows is handed in.

Knows nothing of kernels, hashes, files or the model.  spec: engram.md sections 3 and 6.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from flash41.errors import CheckpointError, ProtocolError, combined, complaint
from flash41.numerics.formats import NAN_E8M0

GROUP = 32
"""Channels of a row that share a scale."""

RowReader = Callable[[Tensor, Tensor, Tensor, torch.dtype], tuple[Tensor, bool]]
"""Codes, scales, row ids [n], dtype -> values [n, head_dim], and whether a scale of those rows is NaN.

A backend's `engram_rows`; row ids were looked at before.
"""


class EngramTable:
    """One layer's table in its stored format."""

    def __init__(self, weight_bytes: Tensor, scale_bytes: Tensor, read: RowReader) -> None:
        """Views of uint8 bytes, [rows, head_dim] and [rows, head_dim/32]; CheckpointError if they disagree."""
        _check(weight_bytes, scale_bytes)
        self._read = read
        self._weight_bytes = weight_bytes
        self._scale_bytes = scale_bytes

    @property
    def num_rows(self) -> int:
        """Rows of the table."""
        return self._weight_bytes.shape[0]

    @property
    def head_dim(self) -> int:
        """Channels of a row."""
        return self._weight_bytes.shape[1]

    def gather(
        self,
        row_ids: npt.NDArray[np.int64],
        masked: npt.NDArray[np.bool_] | None = None,
        dtype: torch.dtype = torch.bfloat16,
    ) -> Tensor:
        """[T, columns * head_dim] of rows [T, columns], lane = column * head_dim + channel: BF16 values in `dtype`.

        Tokens whose `masked` [T] entry is true (image positions) read nothing and are zero.  ProtocolError for a row
        outside the table; CheckpointError for a NaN scale, which no one looked for at start.
        """
        num_tokens, columns = row_ids.shape
        wanted = row_ids if masked is None else row_ids[~masked]
        self._check_rows(wanted)
        index = torch.from_numpy(wanted.reshape(-1))
        values, has_nan_scale = self._read(self._weight_bytes, self._scale_bytes, index, dtype)
        if has_nan_scale:
            raise self._nan_scales(np.unique(wanted))
        gathered = values.view(len(wanted), columns * self.head_dim)
        if masked is None:
            return gathered
        padded = gathered.new_zeros(num_tokens, columns * self.head_dim)
        padded[torch.from_numpy(~masked)] = gathered
        return padded

    def _check_rows(self, row_ids: npt.NDArray[np.int64]) -> None:
        if row_ids.size and not 0 <= row_ids.min() <= row_ids.max() < self.num_rows:
            wrong = np.unique(row_ids[(row_ids < 0) | (row_ids >= self.num_rows)])
            raise ProtocolError(complaint("Engram rows", wrong.tolist(), f"rows in 0..{self.num_rows - 1}"))

    def _nan_scales(self, row_ids: npt.NDArray[np.int64]) -> CheckpointError:
        broken = (self._scale_bytes.index_select(0, torch.from_numpy(row_ids)) == NAN_E8M0).nonzero()
        got = [(int(row_ids[place]), group) for place, group in broken.tolist()]
        return CheckpointError(f"engram.embed.scale: scale byte 255 (NaN) at {got}")


def _check(weight_bytes: Tensor, scale_bytes: Tensor) -> None:
    faults = [
        complaint(f"Engram table {name}", (tuple(part.shape), str(part.dtype)), "two dims of torch.uint8")
        for name, part in (("weight", weight_bytes), ("scale", scale_bytes))
        if part.dim() != 2 or part.dtype is not torch.uint8
    ]
    if not faults:
        rows, head_dim = weight_bytes.shape
        expected = (rows, head_dim // GROUP)
        if head_dim % GROUP:
            faults.append(complaint("channels of an Engram row", head_dim, f"a multiple of {GROUP}"))
        elif tuple(scale_bytes.shape) != expected:
            thing = f"shape of the Engram scale for weight {(rows, head_dim)}"
            faults.append(complaint(thing, tuple(scale_bytes.shape), str(expected)))
    if faults:
        raise CheckpointError(combined(faults))
