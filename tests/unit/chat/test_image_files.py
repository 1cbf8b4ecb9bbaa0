import struct

import numpy as np
import pytest
from PIL import Image

from flash41.chat.image_decode import decode
from flash41.chat.image_errors import ImageError, ImageFault
from flash41.chat.image_files import MAX_SEGMENTS, MAX_TABLES, ImageFormat, examine
from helpers.image_files import chunk, encoded, gif_with, pattern, png, segment, with_segments, zero_png

PIXELS = pattern(40, 30)
SMOOTH = Image.fromarray(pattern(8, 6)).resize((40, 30), Image.BICUBIC)
COMMENT_BLOCK = b"\x01c"
TEXT = b"Comment\0" + b"x" * 100


def gif_comment(blocks: int) -> bytes:
    return b"\x21\xfe" + COMMENT_BLOCK * blocks + b"\0"


@pytest.mark.parametrize(
    ("data", "form", "pixel_bytes"),
    [
        (encoded(PIXELS), ImageFormat.PNG, 3),
        (encoded(SMOOTH.convert("RGBA")), ImageFormat.PNG, 4),
        (encoded(SMOOTH.convert("L")), ImageFormat.PNG, 1),
        (zero_png(40, 30, depth=16, colour=6), ImageFormat.PNG, 24),
        (encoded(SMOOTH, "JPEG"), ImageFormat.JPEG, 4),
        (encoded(SMOOTH, "JPEG", progressive=True), ImageFormat.JPEG, 10),
        (encoded(SMOOTH.convert("CMYK"), "JPEG", progressive=True), ImageFormat.JPEG, 12),
        (encoded(SMOOTH.convert("P"), "GIF"), ImageFormat.GIF, 1),
        (encoded(SMOOTH, "WEBP"), ImageFormat.WEBP, 20),
        (encoded(SMOOTH, "WEBP", lossless=True), ImageFormat.WEBP, 20),
        (encoded(SMOOTH, "WEBP", save_all=True, append_images=[SMOOTH.rotate(180)]), ImageFormat.WEBP, 20),
    ],
)
def test_format_size_and_cost_are_read_from_headers(data: bytes, form: ImageFormat, pixel_bytes: int) -> None:
    found = examine(data)
    assert (found.format, found.width, found.height, found.pixel_bytes) == (form, 40, 30, pixel_bytes)


def test_scans_of_a_jpeg_are_counted() -> None:
    assert examine(encoded(SMOOTH, "JPEG")).passes == 1
    assert 5 <= examine(encoded(SMOOTH, "JPEG", progressive=True)).passes <= 12


def test_what_follows_the_end_of_a_jpeg_holds_no_scans() -> None:
    assert examine(encoded(SMOOTH, "JPEG") + b"film\xff\xda\0\x02" * 999).passes == 1


def test_scans_do_not_hide_behind_an_end_in_a_comment() -> None:
    data = encoded(SMOOTH, "JPEG", progressive=True)
    last = data.rindex(b"\xff\xda")
    hidden = data[:last] + segment(0xFE, b"\xff\xd9") + data[last:-2] * 5 + data[-2:]
    assert examine(hidden).passes == examine(data).passes + 4


def test_metadata_is_left_out_and_pixels_stay() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    jpeg, gif = encoded(SMOOTH, "JPEG"), encoded(SMOOTH.convert("P"), "GIF")
    pairs = [
        (png(40, 30, rows=scanlines(), before=chunk(b"tEXt", TEXT) + chunk(b"gAMA", b"\0\0\xb1\x8f")), png_plain()),
        (with_segments(encoded(SMOOTH, "JPEG", exif=exif, comment=b"hello"), segment(0xE5, b"junk")), jpeg),
        (gif_with(gif, gif_comment(20)), gif),
    ]
    for full, bare in pairs:
        assert examine(full).content == examine(bare).content
        assert len(examine(full).content) < len(full)
        assert decode(full).tobytes() == decode(bare).tobytes()


def scanlines() -> bytes:
    return b"".join(b"\0" + row.tobytes() for row in PIXELS)


def png_plain() -> bytes:
    return png(40, 30, rows=scanlines())


def test_what_the_colours_of_a_jpeg_depend_on_stays() -> None:
    # The Adobe mark says whether four channels are CMYK or YCCK, and whether they are inverted.
    data = encoded(SMOOTH.convert("CMYK"), "JPEG")
    assert b"Adobe" in examine(data).content
    assert np.asarray(decode(data)).mean() == pytest.approx(np.asarray(SMOOTH).mean(), abs=8)


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (png(5, 5, before=chunk(b"IHDR", struct.pack(">IIBBBBB", 9, 9, 8, 2, 0, 0, 0))), "a PNG with two headers"),
        (png(5, 5, before=chunk(b"tEXt") * MAX_SEGMENTS), f"a PNG of more than {MAX_SEGMENTS} chunks"),
        (png(5, 5, colour=5), "a PNG without a sound header"),
        (encoded(PIXELS)[:20], "a header that ends too early"),
        (b"\xff\xd8\xff", "a header that ends too early"),
        (b"\xff\xd8\xff\xfe\x00\x04ab", "a JPEG without a scan"),
        (b"\xff\xd8\xff\xd9", "a JPEG without a frame or without a scan"),
        (with_segments(encoded(SMOOTH, "JPEG"), segment(0xFE, b"") * MAX_TABLES), f"more than {MAX_TABLES} segments"),
        (with_segments(encoded(SMOOTH, "JPEG"), segment(0xC0, b"\x08\0\x09\0\x09\x03")), "a JPEG with two frames"),
        (with_segments(encoded(SMOOTH, "JPEG"), segment(0xC9, b"\x08\0\x09\0\x09\x03")), "a coding that is not read"),
        (encoded(SMOOTH, "JPEG")[:-2] + segment(0xFE, b"") * MAX_SEGMENTS, f"more than {MAX_SEGMENTS} segments"),
        (b"GIF89a" + struct.pack("<HHBBB", 5, 5, 0, 0, 0) + b";", "a GIF without a frame"),
        (b"GIF89a" + struct.pack("<HHBBB", 5, 5, 0, 0, 0), "a header that ends too early"),
        (gif_with(encoded(SMOOTH.convert("P"), "GIF"), gif_comment(MAX_SEGMENTS + 1)), "blocks in front of its first"),
        (b"RIFF\x10\0\0\0WEBPVP8Q" + bytes(20), "a WebP without a picture"),
        (b"RIFF\x10\0\0\0WEBPVP8L", "a header that ends too early"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_headers_that_make_no_sense_are_refused(data: bytes, what: str) -> None:
    with pytest.raises(ImageError, match="expected a sound image file") as caught:
        examine(data)
    assert what in str(caught.value)
    assert caught.value.kind is ImageFault.DECODE


@pytest.mark.parametrize(
    "data",
    [
        b"<svg xmlns='http://www.w3.org/2000/svg' width='9' height='9'/>",
        encoded(PIXELS, "BMP"),
        encoded(PIXELS, "TIFF"),
        encoded(PIXELS, "PPM"),
        encoded(PIXELS, "ICO"),
        b"%PDF-1.7",
        b"MZ" + bytes(64),
        b"RIFF\x10\0\0\0AVI ",
        b" " + encoded(PIXELS),
        b"a",
    ],
    ids=["svg", "bmp", "tiff", "ppm", "ico", "pdf", "exe", "avi", "shifted", "byte"],
)
def test_any_other_format_is_refused_by_its_first_bytes(data: bytes) -> None:
    with pytest.raises(ImageError, match="expected one of png, jpeg, webp and gif") as caught:
        examine(data)
    assert caught.value.kind is ImageFault.MEDIA_TYPE


def test_no_bytes_are_an_empty_image() -> None:
    with pytest.raises(ImageError, match="image: got 'no bytes', expected an image file") as caught:
        examine(b"")
    assert caught.value.kind is ImageFault.EMPTY


def test_a_frame_larger_than_its_gif_screen_counts() -> None:
    gif = encoded(SMOOTH.convert("P"), "GIF")
    shrunk = gif[:6] + struct.pack("<HH", 1, 1) + gif[10:]
    assert (examine(shrunk).width, examine(shrunk).height) == (40, 30)
