"""How large a picture is shown to the model and how many positions it costs, in integers and a few square roots.

Patches are squares of p pixels, q x q of them fold into one token, a cell is p*q pixels wide.  A picture of w x h:

    few pixels     w*h < least: both sides times (least / (w*h))^(1/2), cut to integers
    patches        sides rounded up to multiples of p (not of the cell): grid_height x grid_width
    tokens         rows = ceil(grid_height / q), columns = ceil(grid_width / q)
    cost           n = rows * (columns + 1) + 2            START, rows of IMAGE ... NEWLINE, END
    too dear       n > M: shrunk once, to the largest whole cells that keep the proportions

Release: 800 x 600 becomes 812 x 602 pixels, 43 x 58 patches, 15 x 20 tokens, 317 positions.  Two grids can cost the
same (10 x 19 and 5 x 39 cost 202), so a cost never tells the grid.  spec: vision.md section 2.
"""

import enum
import math
from dataclasses import dataclass

from flash41.chat.image_errors import ImageError, ImageFault

LOW_DETAIL_SIDE = 512
"""Longer side of a picture that is asked for in low detail."""


class SpanType(enum.IntEnum):
    """What a position of an image span holds; the numbers are the model's own."""

    START = 0
    IMAGE = 1
    NEWLINE = 2
    END = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageSizes:
    """What a model's configuration says about sizes."""

    patch_size: int
    """Pixels per patch side."""
    downsample_ratio: int
    """Patches per side that fold into one token."""
    max_tokens: int
    """Largest cost of one picture."""
    min_pixels: int
    """Smaller pictures are enlarged to this many pixels."""
    max_wh_ratio: float | None
    """Largest width over height; wider pictures are planned, and squeezed, to it."""

    @property
    def cell(self) -> int:
        """Pixels per side of one token."""
        return self.patch_size * self.downsample_ratio


@dataclass(frozen=True, slots=True, kw_only=True)
class ImagePlan:
    """The size a picture is shown in."""

    width: int
    """Pixels, a multiple of the patch size."""
    height: int
    """Pixels, a multiple of the patch size."""
    grid_width: int
    """Patches in a row."""
    grid_height: int
    """Rows of patches."""
    token_columns: int
    """Image tokens in a row."""
    token_rows: int
    """Rows of image tokens."""
    stretched: bool
    """Whether the picture fills the size out of proportion; else it keeps its proportions between grey borders."""

    @property
    def num_patches(self) -> int:
        """Patches of the picture."""
        return self.grid_width * self.grid_height

    @property
    def num_tokens(self) -> int:
        """Positions the picture takes in a prompt."""
        return self.token_rows * (self.token_columns + 1) + 2

    @property
    def types(self) -> tuple[SpanType, ...]:
        """What each position of the span holds."""
        row = (*[SpanType.IMAGE] * self.token_columns, SpanType.NEWLINE)
        return (SpanType.START, *row * self.token_rows, SpanType.END)


def low_detail(width: int, height: int) -> tuple[int, int]:
    """The size a picture is shrunk to before planning when little detail is asked for: its longer side 512 at most."""
    longer = max(width, height)
    if longer <= LOW_DETAIL_SIDE:
        return width, height
    return max(1, round(width * LOW_DETAIL_SIDE / longer)), max(1, round(height * LOW_DETAIL_SIDE / longer))


def plan_image(width: int, height: int, sizes: ImageSizes) -> ImagePlan:
    """The plan of a picture of width x height pixels.

    ImageError if it has none, or if its proportions fit no grid of the allowed cost.
    """
    if width < 1 or height < 1:
        raise ImageError(ImageFault.EMPTY, "image size", f"{width}x{height}", "at least one pixel")
    stretched = sizes.max_wh_ratio is not None and width > height * sizes.max_wh_ratio
    w, h = float(width), float(height)
    if sizes.max_wh_ratio is not None and stretched:
        w = height * sizes.max_wh_ratio
    if w * h < sizes.min_pixels:
        zoom = math.sqrt(sizes.min_pixels / (w * h))
        w, h = float(max(1, int(w * zoom))), float(max(1, int(h * zoom)))
    patch = sizes.patch_size
    plan = _plan(math.ceil(w / patch) * patch, math.ceil(h / patch) * patch, sizes, stretched)
    if plan.num_tokens > sizes.max_tokens:
        plan = _plan(*_shrunk(w, h, sizes), sizes, stretched)
    if plan.num_tokens > sizes.max_tokens or plan.num_patches < 1:
        expected = f"proportions that fit {sizes.max_tokens} positions"
        raise ImageError(ImageFault.DIMENSIONS, "image size", f"{width}x{height}", expected)
    return plan


def _shrunk(w: float, h: float, sizes: ImageSizes) -> tuple[int, int]:
    """Width and height in pixels of the largest whole cells under the allowed cost."""
    left, cell, patch = sizes.max_tokens - 2, sizes.cell, sizes.patch_size
    ratio = h / w
    columns = math.sqrt(left / ratio + 0.25) - 0.5  # of columns * ratio rows of columns + 1 positions
    rows = columns * ratio
    if columns < 1:
        return cell, left // 2 * cell
    if rows < 1:
        return (left - 1) * cell, cell
    zoom = min(math.floor(columns) * cell / w, math.floor(rows) * cell / h)
    return math.floor(w * zoom / patch) * patch, math.floor(h * zoom / patch) * patch


def _plan(width: int, height: int, sizes: ImageSizes, stretched: bool) -> ImagePlan:
    grid_width, grid_height = width // sizes.patch_size, height // sizes.patch_size
    return ImagePlan(
        width=width,
        height=height,
        grid_width=grid_width,
        grid_height=grid_height,
        token_columns=-(-grid_width // sizes.downsample_ratio),
        token_rows=-(-grid_height // sizes.downsample_ratio),
        stretched=stretched,
    )
