"""Weights laid out in bands: what a product reads together lies together.

    rows     code of row n, channel k at   n * K + k
    bands    the same code at              ((n / 32 * K / 64 + k / 64) * 32 + n % 32) * 64 + k % 64

So a chunk of 64 channels of 32 rows, which AMX multiplies at a time, is one run of 1 or 2 KiB, and the next follows;
in rows it is 32 pieces from 32 places.  Scales of one row each (FP4) lie in the same order, two for a chunk of a row;
scales that 32 rows share (FP8) lie so already.  A weight keeps its shape and its number of bytes.
"""

import torch
from torch import Tensor

BAND_ROWS = 32
CHUNK_CHANNELS = 64
WORDS = {2: torch.int16, 8: torch.int64}
"""Dtypes that move more than a byte at a time."""


def fits_bands(num_rows: int, num_channels: int) -> bool:
    """Whether a weight is made of whole chunks of whole bands."""
    return num_rows > 0 and num_channels > 0 and num_rows % BAND_ROWS == 0 and num_channels % CHUNK_CHANNELS == 0


def to_bands(rows: Tensor, chunk_bytes: int) -> Tensor:
    """A copy in bands of uint8 [N, bytes of a row], `chunk_bytes` of which belong to one chunk; the same shape."""
    num_rows, row_bytes = rows.shape
    return _swapped(rows, (num_rows // BAND_ROWS, BAND_ROWS, row_bytes // chunk_bytes, chunk_bytes))


def to_rows(bands: Tensor, chunk_bytes: int) -> Tensor:
    """A copy in rows of what `to_bands` made."""
    num_rows, row_bytes = bands.shape
    return _swapped(bands, (num_rows // BAND_ROWS, row_bytes // chunk_bytes, BAND_ROWS, chunk_bytes))


def _swapped(data: Tensor, shape: tuple[int, int, int, int]) -> Tensor:
    word = 8 if shape[-1] % 8 == 0 else 2
    words = data.contiguous().view(-1).view(WORDS[word]).view(*shape[:-1], shape[-1] // word)
    return words.transpose(1, 2).contiguous().view(-1).view(torch.uint8).view(data.shape)
