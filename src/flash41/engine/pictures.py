"""Pictures of a prompt: their sizes from the configuration, their rows from the encoder, their place among the ids.

    0 325 [511] 356, one picture of 10 positions   ->   0 325 511 511 511 511 511 511 511 511 511 511 356
                                                        image at position 2, 10 rows

Every position of a span carries the placeholder's id; its embedding is never used.  spec: vision.md section 6.
"""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from flash41.chat.image_pixels import bf16_values
from flash41.chat.image_plan import ImageSizes
from flash41.chat.images import Picture
from flash41.config.architecture import VisionConfig
from flash41.engine.plan import PlannedImage
from flash41.errors import RequestError, complaint
from flash41.model.batch import Probe
from flash41.model.image_encoder import ImageEncoder
from flash41.model.vision import Grid


def image_sizes(config: VisionConfig) -> ImageSizes:
    """What a model's configuration says about sizes of pictures."""
    return ImageSizes(
        patch_size=config.patch_size,
        downsample_ratio=config.downsample_ratio,
        max_tokens=config.max_image_tokens,
        min_pixels=config.min_pixels,
        max_wh_ratio=config.max_wh_ratio,
    )


def patch_values(picture: Picture) -> Tensor:
    """BF16 [N, 3pp]: the values of a picture's patches."""
    return torch.from_numpy(bf16_values()[picture.patches]).view(torch.bfloat16)


def encode(encoder: ImageEncoder, picture: Picture, probe: Probe | None = None) -> Tensor:
    """Rows [span, D] of a picture."""
    grid = Grid(height=picture.plan.grid_height, width=picture.plan.grid_width)
    return encoder(patch_values(picture), grid, probe)  # type: ignore[no-any-return]


def widen(
    ids: Sequence[int], pictures: Iterable[Picture], image_token_id: int
) -> tuple[tuple[int, ...], tuple[PlannedImage, ...]]:
    """Ids with each placeholder repeated over its picture's span, and where the pictures lie.

    Without pictures a placeholder is an id like any other.  RequestError if there are not as many placeholders as
    pictures.
    """
    given = tuple(pictures)
    places = [place for place, token in enumerate(ids) if token == image_token_id]
    if not given:
        return tuple(ids), ()
    if len(places) != len(given):
        thing = f"placeholders of images (id {image_token_id})"
        raise RequestError(complaint(thing, len(places), f"one for each of {len(given)} images"))
    widened: list[int] = []
    images = []
    done = 0
    for place, picture in zip(places, given, strict=True):
        widened += ids[done:place]
        num_rows = picture.plan.num_tokens
        images.append(PlannedImage(identity=picture.identity, start=len(widened), num_rows=num_rows))
        widened += [image_token_id] * num_rows
        done = place + 1
    return (*widened, *ids[done:]), tuple(images)
