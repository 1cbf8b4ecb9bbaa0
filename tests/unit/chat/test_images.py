from dataclasses import replace

import deepseek_recipe as recipe
import numpy as np
import pytest
from PIL import Image

from flash41.chat.image_decode import ImageLimits
from flash41.chat.image_errors import ImageError, ImageFault
from flash41.chat.image_plan import plan_image
from flash41.chat.images import DETAILS, from_rgb, picture
from flash41.errors import RequestError
from helpers.image_files import RELEASE_SIZES, SMALL_SIZES, encoded, pattern

OFFICIAL_LOW_SIDE, OFFICIAL_SIDE = 512, 10_000


def official_size(data: bytes, detail: str) -> tuple[int, int]:
    options = recipe.PreprocessOptions(detail, OFFICIAL_SIDE, OFFICIAL_LOW_SIDE)
    shown = recipe.OpenCvImagePreprocessor().preprocess(data, options)
    return shown.width, shown.height


@pytest.mark.parametrize("size", [(3000, 2000), (1999, 3001), (7001, 903), (1303, 1303), (2000, 31)], ids=str)
@pytest.mark.parametrize("detail", ["high", "low"])
def test_sizes_are_those_of_the_official_package(size: tuple[int, int], detail: str) -> None:
    data = encoded(Image.new("RGB", size), compress_level=1)
    found = picture(data, RELEASE_SIZES, detail=detail)
    assert (found.plan.width, found.plan.height) == official_size(data, detail)


def test_a_picture_is_its_plan_and_its_patches() -> None:
    found = picture(encoded(pattern(60, 45)), SMALL_SIZES)
    assert found.plan == plan_image(60, 45, SMALL_SIZES)
    assert found.patches.shape == (found.plan.num_patches, 588)
    assert found.patches.dtype == np.uint8
    assert len(found.identity) == 32


def test_the_same_picture_in_another_encoding_has_the_same_identity() -> None:
    pixels = pattern(60, 45)
    files = [
        encoded(pixels),
        encoded(pixels, compress_level=0),
        encoded(pixels, "WEBP", lossless=True),
        encoded(Image.fromarray(pixels).convert("RGBA")),
    ]
    assert len({picture(data, SMALL_SIZES).identity for data in files}) == 1


def test_two_pictures_of_the_same_cost_have_different_identities() -> None:
    pixels = pattern(60, 45)
    other = pixels.copy()
    other[44, 59, 2] ^= 1
    turned = np.ascontiguousarray(pixels.transpose(1, 0, 2))
    reshaped = pixels.reshape(30, 90, 3)
    names = [from_rgb(Image.fromarray(one), SMALL_SIZES).identity for one in (pixels, other, turned, reshaped)]
    assert len(set(names)) == 4


def test_the_same_picture_processed_differently_has_another_identity() -> None:
    image = Image.fromarray(pattern(544, 544))
    high, low = from_rgb(image, RELEASE_SIZES), from_rgb(image, RELEASE_SIZES, low=True)
    assert high.plan == low.plan
    assert not np.array_equal(high.patches, low.patches)
    other = from_rgb(image, replace(RELEASE_SIZES, max_tokens=1023))
    assert other.plan == high.plan
    assert len({high.identity, low.identity, other.identity}) == 3


@pytest.mark.parametrize("detail", [detail for detail in DETAILS if detail != "low"])
def test_every_detail_but_low_means_the_same(detail: str) -> None:
    data = encoded(pattern(600, 20))
    assert picture(data, SMALL_SIZES, detail=detail).identity == picture(data, SMALL_SIZES).identity


def test_an_unknown_detail_is_refused() -> None:
    with pytest.raises(RequestError, match="image detail: got 'medium', expected one of high, original, auto, low"):
        picture(encoded(pattern(5, 5)), SMALL_SIZES, detail="medium")


def test_limits_reach_the_decoder() -> None:
    with pytest.raises(ImageError) as caught:
        picture(encoded(pattern(50, 50)), SMALL_SIZES, ImageLimits(max_pixels=2499))
    assert caught.value.kind is ImageFault.DIMENSIONS
