import pytest

from flash41.engine.prompt_images import image_sizes, num_widened, placed, widen
from flash41.errors import RequestError
from helpers.config_documents import release_config
from helpers.image_files import RELEASE_SIZES
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


def test_the_length_of_a_widened_prompt_is_known_without_widening_it() -> None:
    pictures = [drawn(60, 45), drawn(200, 50)]
    ids = [0, IMAGE, 7, IMAGE, 8]
    assert num_widened(ids, pictures) == len(widen(ids, pictures, IMAGE)[0]) == 27
    assert num_widened(ids, []) == 5


def test_placed_pictures_keep_their_pixels_and_their_names() -> None:
    picture = drawn(60, 45)
    ids, (image,) = placed([0, IMAGE], [picture], IMAGE)
    assert (ids, (image.planned,)) == widen([0, IMAGE], [picture], IMAGE)
    assert image.picture is picture


def test_a_salt_gives_a_picture_another_name() -> None:
    names = {placed([IMAGE], [drawn(60, 45)], IMAGE, salt)[1][0].planned.identity for salt in (b"", b"a", b"b", b"ab")}
    assert len(names) == 4
    again = placed([IMAGE], [drawn(60, 45)], IMAGE, b"ab")[1][0].planned.identity
    assert again in names
