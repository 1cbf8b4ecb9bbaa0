"""Pictures of a prompt: their sizes from the configuration, and their place among the ids.

    0 325 [511] 356, one picture of 10 positions   ->   0 325 511 511 511 511 511 511 511 511 511 511 356
                                                        image at position 2, 10 rows

Every position of a span carries the placeholder's id; its embedding is never used.  Bytes and integers only.
spec: vision.md sections 6 and 8.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from flash41.chat.image_plan import ImageSizes
from flash41.chat.images import Picture
from flash41.config.architecture import VisionConfig
from flash41.engine.plan import PlannedImage
from flash41.errors import RequestError, complaint


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PromptImage:
    """A picture of one request, with its pixels: whoever gives way and comes back may have to show it again."""

    planned: PlannedImage
    """Its name and its positions."""
    picture: Picture
    """What the image encoder is shown."""


def image_sizes(config: VisionConfig) -> ImageSizes:
    """What a model's configuration says about sizes of pictures."""
    return ImageSizes(
        patch_size=config.patch_size,
        downsample_ratio=config.downsample_ratio,
        max_tokens=config.max_image_tokens,
        min_pixels=config.min_pixels,
        max_wh_ratio=config.max_wh_ratio,
    )


def num_widened(ids: Sequence[int], pictures: Iterable[Picture]) -> int:
    """Positions of a prompt that has one placeholder for each of its pictures."""
    return len(ids) + sum(picture.plan.num_tokens - 1 for picture in pictures)


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


def placed(
    ids: Sequence[int], pictures: Sequence[Picture], image_token_id: int, salt: bytes = b""
) -> tuple[tuple[int, ...], tuple[PromptImage, ...]]:
    """As `widen`, with the pictures beside their positions.

    Under a salt a picture has another name: requests of different salts share neither pages nor encoded rows, so that
    nobody learns from the time of an answer which pictures others have shown.
    """
    widened, images = widen(ids, pictures, image_token_id)
    named = [replace(image, identity=_salted(image.identity, salt)) for image in images]
    pairs = zip(named, pictures, strict=True)
    return widened, tuple(PromptImage(planned=image, picture=picture) for image, picture in pairs)


def _salted(identity: bytes, salt: bytes) -> bytes:
    if not salt:
        return identity
    return hashlib.sha256(len(salt).to_bytes(8, "little") + salt + identity).digest()
