import io
import subprocess
import sys
import zipfile
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from flash41.chat.image_decode import DEFAULT_LIMITS, ImageLimits, check_request, decode
from flash41.chat.image_errors import ImageError, ImageFault
from helpers.command_line import environment
from helpers.image_files import (
    chunk,
    encoded,
    gif_with,
    pattern,
    png,
    resized_jpeg,
    segment,
    with_segments,
    zero_png,
)

PIXELS = pattern(40, 30)
IMAGE = Image.fromarray(PIXELS)
SMOOTH = Image.fromarray(pattern(8, 6)).resize((40, 30), Image.BICUBIC)
FILES = {
    "png": encoded(IMAGE),
    "palette": encoded(SMOOTH.convert("P"), transparency=bytes(range(200))),
    "dot": png(1, 1, rows=b"\0abc"),
    "jpeg": encoded(SMOOTH, "JPEG"),
    "progressive": encoded(SMOOTH, "JPEG", progressive=True),
    "gif": encoded(SMOOTH.convert("P"), "GIF", save_all=True, append_images=[SMOOTH.rotate(180).convert("P")]),
    "still": encoded(SMOOTH.convert("P"), "GIF"),
    "webp": encoded(SMOOTH, "WEBP"),
    "lossless": encoded(IMAGE, "WEBP", lossless=True),
    "animated": encoded(SMOOTH, "WEBP", save_all=True, append_images=[SMOOTH.rotate(180)]),
}


def pillow(data: bytes) -> np.ndarray:
    """What Pillow makes of a file, without flash41 in between."""
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGBA"))[:, :, :3]


def kind_of(data: bytes, limits: ImageLimits = DEFAULT_LIMITS) -> ImageFault:
    with pytest.raises(ImageError) as caught:
        decode(data, limits)
    return caught.value.kind


@pytest.mark.parametrize("name", FILES)
def test_a_file_decodes_to_what_pillow_reads(name: str) -> None:
    found = decode(FILES[name])
    assert found.mode == "RGB"
    assert np.array_equal(np.asarray(found), pillow(FILES[name]))


def test_lossless_files_give_their_pixels_back() -> None:
    for name in ("png", "lossless"):
        assert np.array_equal(np.asarray(decode(FILES[name])), PIXELS)


def test_the_first_frame_counts() -> None:
    frames = [Image.new("RGB", (9, 9), colour) for colour in ("red", "lime", "blue")]
    for form in ("GIF", "WEBP", "PNG"):
        options = {"lossless": True} if form == "WEBP" else {}
        data = encoded(frames[0], form, save_all=True, append_images=frames[1:], duration=10, **options)
        assert np.unique(np.asarray(decode(data)).reshape(-1, 3), axis=0).tolist() == [[255, 0, 0]], form


def test_alpha_is_dropped_not_blended() -> None:
    rgba = np.dstack([PIXELS, np.zeros((30, 40), dtype=np.uint8)])
    for data in (encoded(Image.fromarray(rgba)), encoded(Image.fromarray(rgba), "WEBP", lossless=True, exact=True)):
        assert np.array_equal(np.asarray(decode(data)), PIXELS)


def test_a_transparent_colour_of_a_palette_stays_a_colour() -> None:
    palette = IMAGE.convert("P", palette=Image.Palette.ADAPTIVE)
    expected = np.asarray(palette.convert("RGB"))
    assert np.array_equal(np.asarray(decode(encoded(palette, transparency=3))), expected)
    assert np.array_equal(np.asarray(decode(encoded(palette, transparency=bytes(256)))), expected)


def test_an_orientation_is_not_applied() -> None:
    for orientation in (3, 6):
        exif = Image.Exif()
        exif[0x0112] = orientation
        data = encoded(SMOOTH, "JPEG", exif=exif)
        assert decode(data).tobytes() == decode(encoded(SMOOTH, "JPEG")).tobytes()
        assert np.array_equal(np.asarray(decode(encoded(IMAGE, exif=exif))), PIXELS)


def test_sixteen_bits_are_cut_to_the_upper_eight() -> None:
    wide = np.array([[0, 255, 256, 511, 0x7FFF, 0x8000, 0xFFFF]], dtype=np.uint16)
    grey = decode(encoded(Image.fromarray(wide)))
    assert np.asarray(grey)[0, :, 0].tolist() == [0, 0, 1, 1, 127, 128, 255]
    row = b"\0" + wide[0, :6].astype(">u2").tobytes()
    assert np.asarray(decode(png(2, 1, depth=16, rows=row))).tolist() == [[[0, 0, 1], [1, 127, 128]]]


def test_grey_one_bit_and_four_inks_become_rgb() -> None:
    assert np.array_equal(
        np.asarray(decode(encoded(IMAGE.convert("L")))), np.asarray(IMAGE.convert("L").convert("RGB"))
    )
    assert np.array_equal(
        np.asarray(decode(encoded(IMAGE.convert("1")))), np.asarray(IMAGE.convert("1").convert("RGB"))
    )
    inks = encoded(SMOOTH.convert("CMYK"), "JPEG")
    assert np.array_equal(np.asarray(decode(inks)), np.asarray(Image.open(io.BytesIO(inks)).convert("RGB")))


def test_a_file_of_two_kinds_is_what_it_begins_with() -> None:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("evil.html", "<script>alert(1)</script>")
    for name in ("png", "jpeg", "gif", "webp"):
        data = FILES[name] + archive.getvalue() + b"<html><script>alert(1)</script></html>"
        assert decode(data).tobytes() == decode(FILES[name]).tobytes()


@pytest.mark.parametrize("name", ["png", "jpeg", "progressive", "still", "webp", "lossless"])
def test_a_truncated_file_is_refused(name: str) -> None:
    data = FILES[name]
    for length in range(1, len(data) * 3 // 4, max(1, len(data) // 40)):
        assert kind_of(data[:length]) in (ImageFault.DECODE, ImageFault.MEDIA_TYPE), length


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"", ImageFault.EMPTY),
        (png(0, 7), ImageFault.EMPTY),
        (png(7, 0), ImageFault.EMPTY),
        (resized_jpeg(FILES["jpeg"], 40, 0), ImageFault.EMPTY),
        (png(100_000, 1), ImageFault.DIMENSIONS),
        (png(1, 100_000), ImageFault.DIMENSIONS),
        (png(2**31 - 1, 2**31 - 1), ImageFault.DIMENSIONS),
        (zero_png(10_000, 4_001, depth=8, colour=0), ImageFault.DIMENSIONS),
        (resized_jpeg(FILES["jpeg"], 65_535, 65_535), ImageFault.DIMENSIONS),
        (FILES["gif"][:6] + b"\xff\xff\xff\xff" + FILES["gif"][10:], ImageFault.DIMENSIONS),
        (FILES["animated"][:24] + b"\xff\xff\xff\xff\xff\xff" + FILES["animated"][30:], ImageFault.DIMENSIONS),
        (FILES["animated"][:24] + b"\x0f\x27\x00\x0f\x0f\x00" + FILES["animated"][30:], ImageFault.DIMENSIONS),
        (FILES["animated"][:24] + b"\x00\x00\x00\x00\x00\x00" + FILES["animated"][30:], ImageFault.DECODE),
        (b"<svg/>", ImageFault.MEDIA_TYPE),
        (png(50, 50), ImageFault.DECODE),
        (png(50, 50, rows=b"\x09" * 8000), ImageFault.DECODE),
        (png(50, 50, depth=3), ImageFault.DECODE),
        (FILES["png"].replace(b"IDAT", b"IDAU"), ImageFault.DECODE),
        (FILES["jpeg"][:-60] + bytes(1) + FILES["jpeg"][:60], ImageFault.DECODE),
    ],
    ids=lambda value: value.value if isinstance(value, ImageFault) else "",
)
def test_a_hostile_file_has_a_documented_error(data: bytes, kind: ImageFault) -> None:
    assert kind_of(data) is kind


def test_a_wide_pixel_lowers_the_number_of_pixels() -> None:
    limits = ImageLimits(max_decoded_bytes=20 * 1200 - 1)
    assert kind_of(FILES["webp"], limits) is ImageFault.DIMENSIONS
    assert kind_of(zero_png(40, 30, depth=16, colour=6), limits) is ImageFault.DIMENSIONS
    assert decode(FILES["progressive"], limits).size == decode(FILES["png"], limits).size == (40, 30)
    assert kind_of(FILES["png"], ImageLimits(max_decoded_bytes=4 * 1200 - 1)) is ImageFault.DIMENSIONS


def test_scans_without_end_are_refused() -> None:
    data = FILES["progressive"]
    scan = data.rindex(b"\xff\xda")
    repeated = data[:scan] + data[scan:-2] * 3_000 + data[-2:]
    limits = ImageLimits(max_pixel_passes=1200 * 1_000)
    assert kind_of(repeated, limits) is ImageFault.DECODE
    assert decode(data, limits).size == (40, 30)


def test_metadata_costs_nothing() -> None:
    # Each of these holds a decoder that reads it up for seconds, or fills its memory.
    loops = segment(0xE1, b"Exif\0\0II*\0\x08\0\0\0\xff\xff" + (b"\x0f\x01\x02\0\xff\xff\0\0\0\0\0\0" * 5000))
    text = zlib.compress(bytes(1 << 20), 9)
    bombs = [
        with_segments(FILES["jpeg"], loops * 300),
        png(
            40, 30, rows=b"".join(b"\0" + row.tobytes() for row in PIXELS), before=chunk(b"zTXt", b"a\0\0" + text) * 999
        ),
        gif_with(FILES["gif"], b"\x21\xfe" + b"\x01c" * 60_000 + b"\0"),
    ]
    plain = [FILES["jpeg"], FILES["png"], FILES["gif"]]
    for bomb, file in zip(bombs, plain, strict=True):
        assert decode(bomb).tobytes() == decode(file).tobytes()


def test_a_file_may_have_so_many_bytes() -> None:
    data = FILES["png"]
    assert decode(data, ImageLimits(max_file_bytes=len(data))).size == (40, 30)
    assert kind_of(data, ImageLimits(max_file_bytes=len(data) - 1)) is ImageFault.SIZE
    assert DEFAULT_LIMITS.max_file_bytes == 32 << 20


def test_a_request_may_have_so_many_images_and_bytes() -> None:
    check_request([1] * 600)
    check_request([32 << 20, 32 << 20])
    with pytest.raises(ImageError, match="images of a request: got 601, expected at most 600") as caught:
        check_request([1] * 601)
    assert caught.value.kind is ImageFault.COUNT
    with pytest.raises(ImageError, match="bytes of all images of a request: got 67108865") as caught:
        check_request([32 << 20, 32 << 20, 1])
    assert caught.value.kind is ImageFault.TOTAL_SIZE


@settings(max_examples=250, deadline=None)
@given(
    name=st.sampled_from(sorted(FILES)),
    edits=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), min_size=1, max_size=8),
    cut=st.floats(0.3, 1.0),
)
def test_a_fuzzed_file_is_an_image_or_a_documented_error(name: str, edits: list[tuple[float, int]], cut: float) -> None:
    data = bytearray(FILES[name])
    for place, value in edits:
        data[int(place * len(data))] = value
    try:
        found = decode(bytes(data[: int(cut * len(data))]))
    except ImageError:
        return
    assert found.mode == "RGB"
    assert max(found.size) <= DEFAULT_LIMITS.max_side


@settings(max_examples=100, deadline=None)
@given(magic=st.sampled_from([b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF89a", b"RIFF\0\0\0\0WEBP"]), rest=st.binary())
def test_noise_behind_a_magic_number_is_a_documented_error(magic: bytes, rest: bytes) -> None:
    assert kind_of(magic + rest) in (ImageFault.DECODE, ImageFault.EMPTY, ImageFault.DIMENSIONS)


PEAK = """
import resource, sys, time
from flash41.chat.images import picture
from helpers.image_files import RELEASE_SIZES
data = open(sys.argv[1], "rb").read()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
start = time.process_time()
found = picture(data, RELEASE_SIZES)
print(found.plan.num_tokens, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
print(time.process_time() - start)
"""


@pytest.mark.parametrize("form", ["png", "webp"])
def test_the_largest_picture_fits_600_megabytes_and_two_seconds(form: str, tmp_path: object) -> None:
    path = f"{tmp_path}/large"
    data = (
        zero_png(8000, 5000)
        if form == "png"
        else encoded(Image.new("RGB", (6000, 4000)), "WEBP", lossless=True, method=0)
    )
    with open(path, "wb") as file:
        file.write(data)
    command = [sys.executable, "-c", PEAK, path]
    found = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        env=environment() | {"PYTHONPATH": "src:tests"},
        timeout=120,
    )
    assert found.returncode == 0, found.stderr
    tokens, megabytes, seconds = found.stdout.split()
    assert int(tokens) > 900
    assert int(megabytes) < 600
    assert float(seconds) < 5 * 2
