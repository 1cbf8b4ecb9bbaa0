"""From the bytes of an image file to what the model is shown: a plan, patches, and a name for caches.

    decode -> RGB -> (low detail: shrunk) -> plan -> letterbox -> patches

The identity names the picture, not the file: it is a hash of the decoded RGB bytes with their size, of the plan, and of
the processor's settings.  Two encodings of one picture share it; two pictures whose spans look alike do not, nor does
one picture planned in two ways.  spec: vision.md sections 2, 3 and 8.
"""

import hashlib
import struct
from dataclasses import astuple, dataclass

import numpy as np
from PIL import Image

from flash41.chat.image_decode import DEFAULT_LIMITS, ImageLimits, decode
from flash41.chat.image_pixels import Bytes, letterbox, patches
from flash41.chat.image_plan import ImagePlan, ImageSizes, low_detail, plan_image
from flash41.errors import RequestError, complaint

PROCESSOR = b"flash41 letterbox bicubic 1"
"""Names the way from RGB to patches; another way gets another name, and its pictures other identities."""
DETAILS = ("high", "original", "auto", "low")
"""The first three mean the same."""
ROWS_PER_STRIP = 256
"""Rows hashed at a time; bounds memory, never changes a result."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Picture:
    """One image of a prompt, ready for the vision tower."""

    identity: bytes
    """SHA-256 of what decides its patches."""
    plan: ImagePlan
    patches: Bytes
    """uint8 [N, 3 * p * p], patches row after row."""


def picture(data: bytes, sizes: ImageSizes, limits: ImageLimits = DEFAULT_LIMITS, detail: str | None = None) -> Picture:
    """The picture of an image file; ImageError if it is refused, RequestError for an unknown `detail`."""
    if detail is not None and detail not in DETAILS:
        raise RequestError(complaint("image detail", detail, f"one of {', '.join(DETAILS)}"))
    return from_rgb(decode(data, limits), sizes, low=detail == "low")


def from_rgb(rgb: Image.Image, sizes: ImageSizes, low: bool = False) -> Picture:
    """The picture of a decoded RGB image; `low` shrinks its longer side to 512 pixels first."""
    shown = low_detail(*rgb.size) if low else rgb.size
    plan = plan_image(*shown, sizes)
    identity = _identity(rgb, shown, plan, sizes)
    if shown != rgb.size:
        rgb = rgb.resize(shown, Image.Resampling.BICUBIC)
    pixels = np.asarray(letterbox(rgb, plan))
    return Picture(identity=identity, plan=plan, patches=patches(pixels, sizes.patch_size))


def _identity(rgb: Image.Image, shown: tuple[int, int], plan: ImagePlan, sizes: ImageSizes) -> bytes:
    width, height = rgb.size
    total = hashlib.sha256(PROCESSOR)
    total.update(
        struct.pack("<8q", width, height, *shown, plan.width, plan.height, plan.token_columns, plan.token_rows)
    )
    total.update(repr(astuple(sizes)).encode())
    for top in range(0, height, ROWS_PER_STRIP):
        total.update(rgb.crop((0, top, width, min(top + ROWS_PER_STRIP, height))).tobytes())
    return total.digest()
