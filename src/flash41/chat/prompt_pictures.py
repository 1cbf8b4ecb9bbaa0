"""The pictures of a rendered prompt: from what the codec found in a body to what the image encoder is shown.

    sources ──► bytes (data URLs, or whatever a caller opens) ──► Picture, one after the other, under the limits

An error names the part of the body, and which of the images it is.  spec: vision.md section 3.
"""

from collections.abc import Callable, Iterator, Sequence

import deepseek_recipe as recipe

from flash41.chat.image_decode import DEFAULT_LIMITS, ImageLimits, check_request
from flash41.chat.image_plan import ImageSizes
from flash41.chat.image_sources import data_url_bytes
from flash41.chat.images import Picture, picture
from flash41.errors import RequestError, complaint

Fetch = Callable[[recipe.ImageSource], bytes]
"""The bytes behind a source; raises RequestError."""


def data_only(source: recipe.ImageSource) -> bytes:
    """The bytes of a data URL; RequestError for an address of any other kind."""
    if source.data_url is None:
        raise RequestError(complaint("image address", "one of a file or a server", "a data URL"))
    return data_url_bytes(source.data_url)


def pictures_of(
    sources: Sequence[recipe.ImageSource],
    sizes: ImageSizes,
    fetch: Fetch = data_only,
    limits: ImageLimits = DEFAULT_LIMITS,
) -> Iterator[Picture]:
    """The pictures of a prompt, decoded as they are asked for; the same source twice is decoded once.

    ImageError and RequestError name the part.
    """
    check_request([0] * len(sources), limits)
    known: dict[tuple[str | None, str | None, str], Picture] = {}
    lengths = list[int]()
    for number, source in enumerate(sources, 1):
        key = (source.data_url, source.url, source.detail)
        try:
            if key not in known:
                data = fetch(source)
                lengths.append(len(data))
                check_request(lengths, limits)
                known[key] = picture(data, sizes, limits, source.detail)
        except RequestError as error:
            error.args = (f"{place(source, number)}: {error}",)
            raise
        yield known[key]


def place(source: recipe.ImageSource, number: int) -> str:
    """Where an image stands: ``image 2 (messages[0])``."""
    path = source.path.lstrip(".")
    return f"image {number} ({path})" if path else f"image {number}"
