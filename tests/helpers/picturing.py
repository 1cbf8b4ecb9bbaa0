"""Prompts with pictures for the golden checkpoint: the golden pictures, widened ids, encoded rows, and feeding them."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from PIL import Image
from torch import Tensor

from flash41.chat.images import Picture, from_rgb
from flash41.engine.load import LoadedModel
from flash41.engine.pictures import encode, image_sizes, widen
from flash41.engine.plan import PlannedImage
from flash41.model.batch import Probe
from helpers.feeding import Feeder
from helpers.golden_judge import Array, Case
from helpers.image_files import SMALL_SIZES, pattern


def golden_pictures(case: Case) -> list[Picture]:
    """The pictures of a golden case, from their RGB bytes."""
    count = sum(name.endswith("/rgb") for name in case.arrays)
    return [from_rgb(Image.fromarray(case.arrays[f"image{number}/rgb"]), SMALL_SIZES) for number in range(count)]


def drawn(width: int, height: int, seed: int = 0) -> Picture:
    """A picture that no other seed draws."""
    pixels: Array = pattern(width, height) + (seed * 37) % 251
    return from_rgb(Image.fromarray(pixels.astype("uint8")), SMALL_SIZES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pictured:
    """A prompt ready to be fed."""

    ids: tuple[int, ...]
    images: tuple[PlannedImage, ...]
    rows: dict[bytes, Tensor]

    def is_image(self, position: int) -> bool:
        """Whether a position belongs to a picture."""
        return any(image.start <= position < image.end for image in self.images)


def pictured(model: LoadedModel, ids: Sequence[int], pictures: Sequence[Picture]) -> Pictured:
    """Ids with a placeholder for each picture, widened, and the pictures encoded by the model."""
    assert image_sizes(model.config.vision) == SMALL_SIZES
    assert model.encoder is not None
    wide, images = widen(ids, pictures, model.config.tokens.image)
    rows = {picture.identity: encode(model.encoder, picture) for picture in pictures}
    return Pictured(ids=wide, images=images, rows=rows)


def fed(
    model: LoadedModel, prompt: Pictured, lengths: Sequence[int] | None = None, probe: Probe | None = None
) -> Tensor:
    """Logits FP32 [rows, vocab] of a prompt in one forward, or in pieces of these lengths."""
    feeder = Feeder(model, 1, len(prompt.ids))
    feeder.images[0], feeder.rows = prompt.images, prompt.rows
    parts, start = [], 0
    for length in lengths or [len(prompt.ids)]:
        parts.append(feeder.feed({0: prompt.ids[start : start + length]}, probe)[0])
        start += length
    assert start == len(prompt.ids), (start, len(prompt.ids))
    return torch.cat(parts)
