"""From a decoded picture to the patches the vision tower reads.

    letterbox    the picture in its proportions, bicubic (a = -1/2, antialiased when shrinking), centred on grey 127;
                 it fills the width where w/h > W/H, else the height; what is left is rounded half to even
    patches      [grid_height * grid_width, 3 * p * p], row after row; inside a patch channel, row, column
    values       (byte/255 - 1/2) / (1/2) in FP32, then BF16.  Grey 127 is not zero.

Patches stay bytes until the tower asks for them: 256 values are a table.  spec: vision.md section 3.
"""

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from flash41.chat.image_plan import ImagePlan

GREY = (127, 127, 127)

Bytes = NDArray[np.uint8]


def content_size(width: int, height: int, plan: ImagePlan) -> tuple[int, int]:
    """The size of a picture of width x height pixels inside its letterbox, at least one pixel."""
    if plan.stretched:
        return plan.width, plan.height
    ratio, wanted = width / height, plan.width / plan.height
    if ratio > wanted:
        return plan.width, max(1, round(height / width * plan.width))
    if ratio < wanted:
        return max(1, round(width / height * plan.height)), plan.height
    return plan.width, plan.height


def letterbox(rgb: Image.Image, plan: ImagePlan) -> Image.Image:
    """An RGB picture of the planned size: the content between borders of grey."""
    size = content_size(*rgb.size, plan)
    content = rgb.resize(size, Image.Resampling.BICUBIC)
    if size == (plan.width, plan.height):
        return content
    canvas = Image.new("RGB", (plan.width, plan.height), GREY)
    canvas.paste(content, (round((plan.width - size[0]) * 0.5), round((plan.height - size[1]) * 0.5)))
    return canvas


def patches(pixels: Bytes, patch_size: int) -> Bytes:
    """uint8 [N, 3 * p * p] of pixels [height, width, 3] whose sides are multiples of p."""
    height, width, channels = pixels.shape
    grid = pixels.reshape(height // patch_size, patch_size, width // patch_size, patch_size, channels)
    ordered = grid.transpose(0, 2, 4, 1, 3)  # patch row, patch column, channel, row, column
    return np.ascontiguousarray(ordered).reshape(-1, channels * patch_size**2)


def bf16_values() -> NDArray[np.uint16]:
    """The BF16 bit pattern of each byte's value."""
    half = np.float32(0.5)
    values = (np.arange(256, dtype=np.float32) / np.float32(255) - half) / half
    bits = values.view(np.uint32)
    nearest_even = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return (nearest_even >> np.uint32(16)).astype(np.uint16)
