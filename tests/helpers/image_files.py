"""Image files of every kind, sound and hostile, made in memory."""

import io
import struct
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from flash41.chat.image_plan import ImageSizes

RELEASE_SIZES = ImageSizes(patch_size=14, downsample_ratio=3, max_tokens=1024, min_pixels=295_936, max_wh_ratio=None)
SMALL_SIZES = ImageSizes(patch_size=14, downsample_ratio=3, max_tokens=24, min_pixels=7_056, max_wh_ratio=None)
"""Those of the golden checkpoint."""

Pixels = NDArray[np.uint8]


def pattern(width: int, height: int) -> Pixels:
    """uint8 [height, width, 3] of the pixel vectors: R = 3x+5y, G = 7x+2y, B = xy, modulo 256."""
    y, x = np.mgrid[:height, :width]
    return np.stack([3 * x + 5 * y, 7 * x + 2 * y, x * y], -1).astype(np.uint8)


def encoded(image: Image.Image | Pixels, form: str = "PNG", **options: Any) -> bytes:
    """The file of an image."""
    image = image if isinstance(image, Image.Image) else Image.fromarray(image)
    file = io.BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


def chunk(name: bytes, data: bytes = b"") -> bytes:
    """A PNG chunk."""
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def png(width: int, height: int, *, depth: int = 8, colour: int = 2, rows: bytes = b"", before: bytes = b"") -> bytes:
    """A PNG of any claimed size; `rows` are its scanlines, `before` what stands between header and pixels."""
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0))
    pixels = chunk(b"IDAT", zlib.compress(rows, 1))
    return b"\x89PNG\r\n\x1a\n" + header + before + pixels + chunk(b"IEND")


def zero_png(width: int, height: int, *, depth: int = 8, colour: int = 2) -> bytes:
    """A PNG of zeros in full size; a bomb where the size is large."""
    channels = {0: 1, 2: 3, 4: 2, 6: 4}[colour]
    row = b"\0" * (1 + width * channels * depth // 8)
    compressor = zlib.compressobj(1)
    strips = [compressor.compress(row * min(64, height - first)) for first in range(0, height, 64)]
    data = b"".join([*strips, compressor.flush()])
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", data) + chunk(b"IEND")


def segment(marker: int, data: bytes) -> bytes:
    """A JPEG segment."""
    return bytes((0xFF, marker)) + struct.pack(">H", len(data) + 2) + data


def with_segments(jpeg: bytes, segments: bytes) -> bytes:
    """A JPEG with segments right behind its start."""
    return jpeg[:2] + segments + jpeg[2:]


def resized_jpeg(jpeg: bytes, width: int, height: int) -> bytes:
    """A JPEG whose frame claims another size."""
    place = next(place for place in range(len(jpeg)) if jpeg[place] == 0xFF and jpeg[place + 1] in (0xC0, 0xC2))
    return jpeg[: place + 5] + struct.pack(">HH", height, width) + jpeg[place + 9 :]


def gif_with(gif: bytes, extensions: bytes) -> bytes:
    """A GIF with extensions in front of its first frame."""
    palette = 13 + (3 << ((gif[10] & 7) + 1) if gif[10] & 0x80 else 0)
    return gif[:palette] + extensions + gif[palette:]
