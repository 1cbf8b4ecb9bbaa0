"""Prompts with pictures for the golden checkpoint: the golden pictures, widened ids, encoded rows, feeding them, and
engines that take them as requests."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from flash41.chat.images import Picture, from_rgb
from flash41.engine.engine import Engine
from flash41.engine.image_shelf import ShelfLimits
from flash41.engine.load import LoadedModel
from flash41.engine.pictures import EncodedPictures, encode
from flash41.engine.plan import PlannedImage
from flash41.engine.prompt_images import image_sizes, placed, widen
from flash41.engine.request import Request, SamplingParams
from flash41.model.batch import Probe
from flash41.planning.pictures import PicturePlan
from helpers.answers import PARAMS, POISON, Tokens, asking, limits, paged_plan, run
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


def picture_plan(rows: int = 96, patches: int = 216) -> PicturePlan:
    """Room for four of the largest pictures; a step encodes one of these."""
    return PicturePlan(num_rows=rows, num_patches=patches, rows_bytes=0, encoder_bytes=0, reason="a test")


def showing(
    model: LoadedModel,
    number: int,
    ids: Sequence[int],
    pictures: Sequence[Picture],
    params: SamplingParams = PARAMS,
    salt: bytes = b"",
) -> Request:
    """A request for ids with a placeholder for each picture."""
    widened, images = placed(ids, pictures, model.config.tokens.image, salt)
    return asking(number, widened, params, images=images, cache_salt=salt)


def picture_engine(
    model: LoadedModel,
    pictures: PicturePlan | None = None,
    *,
    decoder: bool = False,
    prefix: bool = False,
    **values: Any,
) -> Engine:
    """An engine with the plan of `paged_plan` that takes pictures; `decoder` and `prefix` are its replays."""
    plan = replace(paged_plan(model, **values), pictures=pictures or picture_plan())
    plan = replace(plan, decoder_replay=decoder, prefix_replay=prefix, num_images=0 if prefix else plan.num_images)
    tested = model.engine(plan)
    store: Any = tested.runner.store
    store.pool.memory.fill_(POISON)
    if tested.runner.images is not None:
        tested.runner.images.memory.fill_(POISON)
    return tested


def alone(model: LoadedModel, asked: Request) -> Tokens:
    """What a request is answered by an engine of its own with contiguous caches, its prompt read in one piece."""
    assert model.encoder is not None
    longest = len(asked.prompt_ids) + asked.params.max_tokens + 1
    room = replace(
        limits(model, 1, longest, longest), images=ShelfLimits(num_rows=longest + 24, num_patches=10 * longest + 216)
    )
    engine = Engine(model.runner(1, longest), room, pictures=EncodedPictures(model.encoder))
    copy = Request(
        request_id=0,
        prompt_ids=asked.prompt_ids,
        params=asked.params,
        seed=asked.seed,
        eos_token_id=asked.eos_token_id,
        images=asked.images,
    )
    return run(engine, [copy])[0]
