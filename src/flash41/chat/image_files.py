"""What an image file says about itself before anything decodes it, and the part of it that holds pixels.

A few bytes of header can announce gigabytes, and metadata can hold a decoder up for minutes: tables that point at
themselves, millions of tiny comments, hundreds of passes over one picture.  So a file is walked here first, in bounded
time: format by its first bytes (never by name or declared type), width and height, and what the pixels depend on.
Metadata (EXIF, colour profiles, comments, text) is left out of what is handed to the decoder; it changes no pixel, as
the model's own preprocessing neither turns pictures nor converts colours.

    PNG     IHDR, PLTE, IDAT, IEND                    JPEG    tables, frame, JFIF and Adobe marks, all scans
    GIF     screen, palette, the first frame on       WebP    as it is: its decoder reads no metadata

spec: vision.md section 3.
"""

import enum
import re
import struct
from dataclasses import dataclass

from flash41.chat.image_errors import ImageError, ImageFault

MAX_SEGMENTS = 1 << 16
"""Chunks, segments or blocks of one file; an image of 32 MiB in pieces of 512 bytes has no more."""
MAX_TABLES = 1 << 12
"""Segments in front of the first scan of a JPEG file."""

PNG_MAGIC = b"\x89PNG\r\n\x1a\n"
PNG_PIXELS = (b"IHDR", b"PLTE", b"IDAT", b"IEND")
PNG_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
"""Samples of a pixel, by colour type."""

JPEG_FRAMES = range(0xC0, 0xD0)
JPEG_NO_FRAMES = (0xC4, 0xC8, 0xCC)
"""Markers of that range with another meaning: Huffman tables, a reserved one, arithmetic tables."""
JPEG_PROGRESSIVE = 0xC2
JPEG_DECODED_FRAMES = (0xC0, 0xC1, JPEG_PROGRESSIVE)
"""Baseline, extended and progressive Huffman coding.  Arithmetic coding is five times slower and nobody writes it."""
JPEG_METADATA = (*(marker for marker in range(0xE0, 0xF0) if marker not in (0xE0, 0xEE)), 0xFE)
JPEG_ALONE = (0x01, *range(0xD0, 0xD8))
"""Markers without a segment."""
JPEG_SCAN = 0xDA
JPEG_END = 0xD9
JPEG_MARKER = re.compile(rb"\xff[^\x00\x01\xd0-\xd7\xff]", re.DOTALL)
"""A marker with a segment, or the end; in coded data every other FF is followed by one of these."""


class ImageFormat(enum.Enum):
    """Formats that are decoded."""

    PNG = "png"
    JPEG = "jpeg"
    WEBP = "webp"
    GIF = "gif"


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageFile:
    """An image file as its headers describe it."""

    format: ImageFormat
    width: int
    height: int
    pixel_bytes: int
    """Bytes that the decoder holds of one pixel, or is worth in time."""
    passes: int
    """How often the decoder goes over the picture."""
    content: bytes
    """The file without what its pixels do not depend on."""


def examine(data: bytes) -> ImageFile:
    """The description of a file; ImageError if it is empty, of another format, or its headers make no sense."""
    if not data:
        raise ImageError(ImageFault.EMPTY, "image", "no bytes", "an image file")
    try:
        if data.startswith(PNG_MAGIC):
            return _png(data)
        if data.startswith(b"\xff\xd8\xff"):
            return _jpeg(data)
        if data.startswith((b"GIF87a", b"GIF89a")):
            return _gif(data)
        if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
            return _webp(data)
    except (struct.error, IndexError) as error:
        raise broken("a header that ends too early") from error
    expected = "one of png, jpeg, webp and gif"
    raise ImageError(ImageFault.MEDIA_TYPE, "image", f"a file that begins {data[:8].hex(' ')}", expected)


def broken(what: str) -> ImageError:
    """The error of a file that is no sound image."""
    return ImageError(ImageFault.DECODE, "image", what, "a sound image file")


def _png(data: bytes) -> ImageFile:
    width, height, depth, colour = struct.unpack_from(">IIBB", data, 16)
    if data[12:16] != b"IHDR" or colour not in PNG_CHANNELS:
        raise broken("a PNG without a sound header")
    kept = [memoryview(data)[:8]]
    position, name = 8, b""
    for _ in range(MAX_SEGMENTS):
        if position + 8 > len(data) or name == b"IEND":
            break
        length, name = struct.unpack_from(">I4s", data, position)
        end = position + 12 + length
        if name == b"IHDR" and position != 8:
            raise broken("a PNG with two headers")
        if name in PNG_PIXELS:
            kept.append(memoryview(data)[position:end])
        position = end
    else:
        raise broken(f"a PNG of more than {MAX_SEGMENTS} chunks")
    return ImageFile(
        format=ImageFormat.PNG,
        width=width,
        height=height,
        pixel_bytes=PNG_CHANNELS[colour] * (6 if depth == 16 else 1),  # twice the bytes, three times the work
        passes=1,
        content=b"".join(kept),
    )


def _jpeg(data: bytes) -> ImageFile:
    kept, frame, position = [memoryview(data)[:2]], None, 2
    for _ in range(MAX_TABLES):
        position = data.find(b"\xff", position)
        if position < 0:
            raise broken("a JPEG without a scan")
        marker = data[position + 1]
        if marker in (0x00, 0xFF) or marker in JPEG_ALONE:
            position += 1 if marker == 0xFF else 2
            continue
        if marker in (JPEG_SCAN, JPEG_END):
            break
        (length,) = struct.unpack_from(">H", data, position + 2)
        if marker in JPEG_FRAMES and marker not in JPEG_NO_FRAMES:
            if frame is not None or marker not in JPEG_DECODED_FRAMES:
                raise broken("a JPEG with two frames or a coding that is not read")
            frame = (marker, *struct.unpack_from(">xHHB", data, position + 4))
        if marker not in JPEG_METADATA:
            kept.append(memoryview(data)[position : position + 2 + length])
        position += 2 + length
    else:
        raise broken(f"a JPEG of more than {MAX_TABLES} segments in front of its first scan")
    if frame is None or marker == JPEG_END:
        raise broken("a JPEG without a frame or without a scan")
    coding, height, width, components = frame
    kept.append(memoryview(data)[position:])
    return ImageFile(
        format=ImageFormat.JPEG,
        width=width,
        height=height,
        pixel_bytes=4 + 2 * components if coding == JPEG_PROGRESSIVE else 4,  # all coefficients, then the picture
        passes=_num_scans(data, position),
        content=b"".join(kept),
    )


def _num_scans(data: bytes, position: int) -> int:
    """Scans from the first one on; what follows the end of the image, a film for example, is not looked at."""
    count = 0
    for _ in range(MAX_SEGMENTS):
        found = JPEG_MARKER.search(data, position)
        if found is None or data[found.start() + 1] == JPEG_END:
            return count
        position = found.start()
        count += data[position + 1] == JPEG_SCAN
        (length,) = struct.unpack_from(">H", data, position + 2)
        position += 2 + length
    raise broken(f"a JPEG of more than {MAX_SEGMENTS} segments")


def _gif(data: bytes) -> ImageFile:
    width, height, flags = struct.unpack_from("<HHB", data, 6)
    palette = 13 + (3 << ((flags & 7) + 1) if flags & 0x80 else 0)
    position, control, blocks = palette, b"", 0
    while data[position] != 0x2C:
        if data[position] != 0x21:
            raise broken("a GIF without a frame")
        start, label = position, data[position + 1]
        position += 2
        while data[position]:
            position += 1 + data[position]
            blocks += 1
            if blocks > MAX_SEGMENTS:
                raise broken(f"a GIF of more than {MAX_SEGMENTS} blocks in front of its first frame")
        position += 1
        if label == 0xF9:
            control = data[start:position]
    left, top, frame_width, frame_height = struct.unpack_from("<HHHH", data, position + 1)
    return ImageFile(
        format=ImageFormat.GIF,
        width=max(width, left + frame_width),  # a frame may be larger than its screen
        height=max(height, top + frame_height),
        pixel_bytes=1,
        passes=1,
        content=data[:palette] + control + data[position:],
    )


def _webp(data: bytes) -> ImageFile:
    kind = data[12:16]
    if kind == b"VP8X":
        width, height = (1 + int.from_bytes(data[at : at + 3], "little") for at in (24, 27))
    elif kind == b"VP8L":
        (bits,) = struct.unpack_from("<I", data, 21)
        width, height = (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    elif kind == b"VP8 ":
        width, height = (side & 0x3FFF for side in struct.unpack_from("<HH", data, 26))
    else:
        raise broken("a WebP without a picture")
    # Frame, its predecessor, the decoder's own, what it returns, and what is kept of it: four bytes of each at once.
    return ImageFile(format=ImageFormat.WEBP, width=width, height=height, pixel_bytes=20, passes=1, content=data)
