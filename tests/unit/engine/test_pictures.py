import ml_dtypes
import numpy as np
import pytest
import torch

from flash41.config.run import Profile
from flash41.engine.pictures import encode, image_sizes, patch_values, widen
from flash41.errors import RequestError
from helpers.config_documents import release_config
from helpers.golden_judge import CHECKPOINT
from helpers.image_files import RELEASE_SIZES
from helpers.models import Models
from helpers.picturing import drawn

IMAGE = 511


def test_sizes_are_those_of_the_configuration() -> None:
    assert image_sizes(release_config().vision) == RELEASE_SIZES


def test_each_placeholder_becomes_the_span_of_its_picture() -> None:
    first, second = drawn(60, 45), drawn(200, 50)
    ids, images = widen([0, IMAGE, 7, IMAGE, 8], [first, second], IMAGE)
    sizes = (first.plan.num_tokens, second.plan.num_tokens)
    assert sizes == (10, 14)
    assert ids == (0, *[IMAGE] * 10, 7, *[IMAGE] * 14, 8)
    assert [(image.identity, image.start, image.num_rows) for image in images] == [
        (first.identity, 1, 10),
        (second.identity, 12, 14),
    ]


def test_a_picture_may_stand_alone() -> None:
    ids, (image,) = widen([IMAGE], [drawn(60, 45)], IMAGE)
    assert ids == (IMAGE,) * 10
    assert (image.start, image.end) == (0, 10)


def test_without_pictures_a_placeholder_is_an_id_like_any_other() -> None:
    assert widen([0, IMAGE, 5], [], IMAGE) == ((0, IMAGE, 5), ())


@pytest.mark.parametrize("ids", [[0, 5], [0, IMAGE, IMAGE]])
def test_placeholders_and_pictures_must_be_as_many(ids: list[int]) -> None:
    message = rf"placeholders of images \(id 511\): got {ids.count(IMAGE)}, expected one for each of 1 images"
    with pytest.raises(RequestError, match=message):
        widen(ids, [drawn(60, 45)], IMAGE)


def test_patch_values_are_bf16_of_the_bytes() -> None:
    picture = drawn(60, 45)
    exact = (picture.patches.astype(np.float32) / np.float32(255) - np.float32(0.5)) / np.float32(0.5)
    got = patch_values(picture)
    assert got.dtype is torch.bfloat16
    assert np.array_equal(got.view(torch.uint16).numpy(), exact.astype(ml_dtypes.bfloat16).view(np.uint16))


@pytest.mark.parametrize("profile", [Profile.VENDOR, Profile.FP32])
def test_a_picture_has_one_row_for_each_position(profile: Profile, models: Models) -> None:
    model, picture = models(CHECKPOINT, profile), drawn(60, 45)
    assert model.encoder is not None
    rows = encode(model.encoder, picture)
    assert rows.shape == (picture.plan.num_tokens, model.config.hidden_size)
    assert rows.dtype is model.dtype
    assert torch.equal(rows, encode(model.encoder, picture))
