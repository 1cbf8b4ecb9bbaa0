from collections.abc import Sequence
from typing import Literal

import deepseek_recipe as recipe
import pytest

from flash41.chat.image_decode import ImageLimits
from flash41.chat.image_errors import ImageError, ImageFault
from flash41.chat.images import picture
from flash41.chat.parts import data_url
from flash41.chat.prompt_pictures import data_only, pictures_of, place
from flash41.errors import RequestError
from helpers.image_files import SMALL_SIZES, encoded, pattern

PNG = encoded(pattern(60, 45))
URL = data_url(PNG)


def source(url: str = URL, detail: Literal["high", "low"] = "high", path: str = ".messages[0]") -> recipe.ImageSource:
    if url.startswith("data:"):
        return recipe.DataUrlImageSource(url, detail, path=path)
    return recipe.UrlImageSource(url, detail, path=path)


def fault(sources: Sequence[recipe.ImageSource], limits: ImageLimits) -> tuple[ImageFault, str]:
    with pytest.raises(ImageError) as raised:
        list(pictures_of(sources, SMALL_SIZES, limits=limits))
    return raised.value.kind, str(raised.value)


def test_pictures_are_those_of_the_files_in_order() -> None:
    other = encoded(pattern(40, 90), "WEBP", lossless=True)
    found = list(pictures_of([source(), source(data_url(other))], SMALL_SIZES))
    assert [one.identity for one in found] == [picture(data, SMALL_SIZES).identity for data in (PNG, other)]


def test_the_same_source_twice_is_decoded_once() -> None:
    calls = []

    def fetch(one: recipe.ImageSource) -> bytes:
        calls.append(one.path)
        return data_only(one)

    first, again, low = pictures_of([source(), source(), source(detail="low")], SMALL_SIZES, fetch)
    assert first is again
    assert low.plan == first.plan
    assert len(calls) == 2


def test_pictures_come_one_by_one() -> None:
    pictures = pictures_of([source(), source("data:image/png;base64,AAAA")], SMALL_SIZES)
    assert next(pictures).plan.num_tokens == 10
    with pytest.raises(ImageError, match=r"^image 2 \(messages\[0\]\): image: got 'a file that begins 00 00 00'"):
        next(pictures)


def test_an_error_names_the_part_and_keeps_its_kind() -> None:
    bad = source("data:image/png;base64,AAAA", path="input[3]")
    kind, message = fault([source(), bad], ImageLimits())
    assert kind is ImageFault.MEDIA_TYPE
    assert message.startswith("image 2 (input[3]): image: ")
    assert place(source(path=""), 1) == "image 1"


def test_limits_of_a_request_hold_over_all_files() -> None:
    size = len(PNG)
    assert fault([source()] * 3, ImageLimits(max_images=2))[0] is ImageFault.COUNT
    kind, message = fault([source(), source(detail="low")], ImageLimits(max_total_bytes=2 * size - 1))
    assert kind is ImageFault.TOTAL_SIZE
    assert "image 2 (messages[0])" in message
    assert fault([source()], ImageLimits(max_file_bytes=size - 1))[0] is ImageFault.SIZE


def test_addresses_are_refused_where_nobody_opens_them() -> None:
    message = r"image 1 \(messages\[0\]\): image address: got 'one of a file or a server', expected a data URL"
    with pytest.raises(RequestError, match=message):
        list(pictures_of([source("https://example.org/a.png")], SMALL_SIZES))
