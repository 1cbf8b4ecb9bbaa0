"""From the bytes of an image file to RGB, with bounds on what a file may cost.

What Pillow makes of a picture is what the model was trained on: `convert("RGB")`, the first frame, alpha dropped (not
blended), EXIF orientation not applied, grey, palette and CMYK as Pillow does; 16 bits are cut to the upper 8.

Bounds are known from the headers, before anything is decoded: 10,000 pixels a side and 40 megapixels; fewer where a
pixel is wide while it is decoded (16 bits, WebP) or gone over many times (progressive JPEG).  Any file within them is
decoded, or refused, in about two seconds and 600 MB.  spec: vision.md section 3.
"""

import io
import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from PIL import GifImagePlugin, Image, JpegImagePlugin, PngImagePlugin, WebPImagePlugin

from flash41.chat.image_errors import ImageError, ImageFault
from flash41.chat.image_files import ImageFile, ImageFormat, broken, examine

DECODERS: dict[ImageFormat, Callable[[io.BytesIO], Image.Image]] = {
    ImageFormat.PNG: PngImagePlugin.PngImageFile,
    ImageFormat.JPEG: JpegImagePlugin.JpegImageFile,
    ImageFormat.WEBP: WebPImagePlugin.WebPImageFile,
    ImageFormat.GIF: GifImagePlugin.GifImageFile,
}
"""One decoder per format, chosen by `examine`; none guesses."""

FAILURES = (
    OSError,
    EOFError,
    SyntaxError,
    ValueError,
    TypeError,
    LookupError,
    ArithmeticError,
    AttributeError,
    RuntimeError,
    MemoryError,
    Warning,  # where a program turns warnings into errors
    struct.error,
    zlib.error,
    Image.DecompressionBombError,
)
"""What a decoder may raise on bytes that are no image.  Pillow documents no closed set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageLimits:
    """What images may cost; the defaults are the hosted service's, and 40 megapixels."""

    max_file_bytes: int = 32 << 20
    """Bytes of one file."""
    max_total_bytes: int = 64 << 20
    """Bytes of all files of a request."""
    max_images: int = 600
    """Images of a request."""
    max_side: int = 10_000
    """Pixels of a side."""
    max_pixels: int = 40_000_000
    """Pixels of an image."""
    max_decoded_bytes: int = 480_000_000
    """Bytes of an image while it is decoded."""
    max_pixel_passes: int = 640_000_000
    """Pixels times the passes a decoder makes over them."""


DEFAULT_LIMITS = ImageLimits()

STORED_PIXEL_BYTES = 4
"""Bytes of an RGB pixel in Pillow."""


def check_request(file_bytes: Sequence[int], limits: ImageLimits = DEFAULT_LIMITS) -> None:
    """ImageError if a request has too many images, or too many bytes in their files."""
    if len(file_bytes) > limits.max_images:
        raise ImageError(ImageFault.COUNT, "images of a request", len(file_bytes), f"at most {limits.max_images}")
    if sum(file_bytes) > limits.max_total_bytes:
        expected = f"at most {limits.max_total_bytes}"
        raise ImageError(ImageFault.TOTAL_SIZE, "bytes of all images of a request", sum(file_bytes), expected)


def decode(data: bytes, limits: ImageLimits = DEFAULT_LIMITS) -> Image.Image:
    """The first frame of a PNG, JPEG, WebP or GIF file as an RGB image; ImageError for anything else."""
    if len(data) > limits.max_file_bytes:
        raise ImageError(ImageFault.SIZE, "bytes of an image", len(data), f"at most {limits.max_file_bytes}")
    file = examine(data)
    _check(file, limits)
    try:
        with DECODERS[file.format](io.BytesIO(file.content)) as image:
            if image.size != (file.width, file.height):
                raise broken(f"headers that say {file.width}x{file.height} and {image.size[0]}x{image.size[1]}")
            return _rgb(image)
    except ImageError:
        raise
    except FAILURES as error:
        raise broken(str(error) or type(error).__name__) from error


def _check(file: ImageFile, limits: ImageLimits) -> None:
    size, pixels = f"{file.width}x{file.height}", file.width * file.height
    if pixels == 0:
        raise ImageError(ImageFault.EMPTY, "image size", size, "at least one pixel")
    if max(file.width, file.height) > limits.max_side:
        raise ImageError(ImageFault.DIMENSIONS, "image size", size, f"sides of at most {limits.max_side} pixels")
    if pixels > limits.max_pixels:
        raise ImageError(ImageFault.DIMENSIONS, "image size", size, f"at most {limits.max_pixels} pixels")
    widest = max(file.pixel_bytes, STORED_PIXEL_BYTES)
    if pixels * widest > limits.max_decoded_bytes:
        expected = f"at most {limits.max_decoded_bytes // widest} pixels in this format"
        raise ImageError(ImageFault.DIMENSIONS, "image size", size, expected)
    if pixels * file.passes > limits.max_pixel_passes:
        raise broken(f"{file.passes} scans over {size} pixels")


def _rgb(image: Image.Image) -> Image.Image:
    image.load()
    image.info.clear()  # a transparent colour would only cost time and warnings: alpha is dropped
    if image.mode.startswith("I;16"):
        upper = (np.asarray(image) >> 8).astype(np.uint8)
        return Image.fromarray(upper).convert("RGB")
    return image.convert("RGB") if image.mode != "RGB" else image.copy()
