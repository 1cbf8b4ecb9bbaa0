"""What an `LLM` does with pictures: from the sources of a prompt, or from files beside raw prompts, to pictures.

Decoding ends early where the pictures so far leave no room in the longest request.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

from flash41.chat.conversation import Prompt
from flash41.chat.image_decode import check_request
from flash41.chat.image_plan import ImageSizes
from flash41.chat.image_sources import data_url_bytes
from flash41.chat.images import Picture, picture
from flash41.chat.parts import Image, ImageData, read_file
from flash41.chat.prompt_pictures import pictures_of
from flash41.engine.prompt_images import num_widened
from flash41.errors import RequestError, complaint

Pictured = Image | ImageData | Picture
"""A picture beside a raw prompt: as in a message, or one that was made before."""


def pictures_of_prompt(prompt: Prompt, sizes: ImageSizes, max_model_len: int) -> tuple[Picture, ...]:
    """The pictures of a rendered prompt, whose sources are data URLs.  Raises RequestError."""
    return fitting(prompt.ids, pictures_of(prompt.images, sizes), max_model_len)


def fitting(ids: Sequence[int], pictures: Iterable[Picture], max_model_len: int) -> tuple[Picture, ...]:
    """All pictures; RequestError at the first with which the prompt is as long as the longest request."""
    taken = list[Picture]()
    for one in pictures:
        taken.append(one)
        length = num_widened(ids, taken)
        if length >= max_model_len:
            thing = f"prompt length with {len(taken)} images"
            raise RequestError(complaint(thing, length, f"fewer tokens than max_model_len {max_model_len}"))
    return tuple(taken)


def raw_pictures(images: Sequence[Pictured], sizes: ImageSizes) -> tuple[Picture, ...]:
    """The pictures beside a raw prompt, in the order of its placeholders.  Raises RequestError naming the image."""
    check_request([0] * len(images))
    found = []
    for number, image in enumerate(images, 1):
        try:
            found.append(_picture(image, sizes))
        except RequestError as error:
            error.args = (f"image {number}: {error}",)
            raise
    return tuple(found)


def _picture(image: Pictured, sizes: ImageSizes) -> Picture:
    if isinstance(image, Picture):
        return image
    detail = image.detail if isinstance(image, Image) else None
    data = image.data if isinstance(image, Image) else image
    if isinstance(data, str):
        data = data_url_bytes(data)
    elif isinstance(data, Path):
        data = read_file(data)
    return picture(data, sizes, detail=detail)
