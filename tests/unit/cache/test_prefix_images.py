"""Images under cached pages: when they may be resumed, which stay, and those that are numbered before their page."""

import dataclasses
from collections.abc import Sequence

from flash41.cache.images import Image, ImageRole
from flash41.cache.page_keys import PageKey
from helpers.prefix_bench import Bench, keys_of


def test_an_image_is_matched_only_when_its_copy_has_ended() -> None:
    bench = Bench()
    keys = bench.publish([1, 2])
    image = bench.cache.begin_image(keys[0], ImageRole.PROMPT)
    assert image is not None
    assert bench.match([1, 2, 3]).num_tokens == 0
    bench.cache.finish_image(image)
    assert bench.match([1, 2, 3]).num_tokens == 2
    assert bench.cache.counters.images_kept == 1


def test_an_image_orphaned_while_it_is_copied_is_never_matched() -> None:
    bench = Bench(num_images=1)
    keys = bench.publish([1, 2])
    image = bench.cache.begin_image(keys[0], ImageRole.PROMPT)
    assert image is not None
    assert bench.cache.make_room(16)
    bench.publish([1, 2])
    bench.cache.finish_image(image)
    assert bench.match([1, 2, 3]).num_tokens == 0
    assert bench.cache.counters.images_kept == 0
    bench.check()


def test_a_boundary_is_imaged_once_and_takes_on_further_roles() -> None:
    bench = Bench()
    keys = bench.publish([1, 2])
    image = bench.keep(keys[0], ImageRole.RUNG)
    assert bench.cache.begin_image(keys[0], ImageRole.PROMPT) is None
    assert image.role is ImageRole.PROMPT
    assert bench.cache.counters.images_dropped == 0


def test_a_retry_resumes_from_the_end_of_its_prompt_after_a_long_answer() -> None:
    # Pitfalls 91 to 93: one image; the answer passes boundaries behind the prompt.
    bench = Bench(num_images=1)
    prompt, answer = [1, 2, 3, 4], [5, 6, 7, 8]
    keys = bench.publish(prompt + answer)
    bench.keep(keys[1], ImageRole.PROMPT)
    for key in keys[2:]:
        assert bench.cache.begin_image(key, ImageRole.DECODE) is None
    assert bench.cache.counters.images_dropped == 2
    assert bench.match([*prompt, 9]).num_tokens == 4


def test_a_continued_dialogue_resumes_behind_the_answer() -> None:
    # Pitfalls 90 and 96: with room for two, both the prompt's end and the answer's last boundary are kept.
    bench = Bench(num_images=2)
    keys = bench.publish([1, 2, 3, 4, 5, 6, 7, 8])
    bench.keep(keys[0], ImageRole.PROMPT)
    for key in keys[1:]:
        bench.keep(key, ImageRole.DECODE)
    assert bench.match([1, 2, 3, 4, 5, 6, 7, 8, 9]).num_tokens == 8
    assert bench.match([1, 2, 9]).num_tokens == 2


def test_a_cancelled_image_frees_its_slot() -> None:
    bench = Bench(num_images=1)
    keys = bench.publish([1, 2])
    image = bench.cache.begin_image(keys[0], ImageRole.PROMPT)
    assert image is not None
    bench.cache.cancel_image(image)
    bench.keep(keys[0])
    bench.check()


# Numbered ahead.


def begun_ahead(bench: Bench, keys: Sequence[PageKey], role: ImageRole = ImageRole.PROMPT) -> Image:
    image = bench.cache.begin_image_ahead(keys, role)
    assert image is not None
    return image


def test_an_image_may_be_numbered_before_its_page_is_filed() -> None:
    bench = Bench()
    image = begun_ahead(bench, keys_of([1, 2, 3, 4]))
    bench.check()
    bench.publish([1, 2, 3, 4])
    assert bench.match([1, 2, 3, 4, 5]).num_tokens == 0
    bench.cache.finish_image(image)
    assert bench.match([1, 2, 3, 4, 5]).num_tokens == 4
    bench.check()


def test_an_image_whose_page_is_not_filed_in_the_end_is_dropped() -> None:
    bench = Bench(max_pages=1, num_images=2)
    keys = keys_of([1, 2, 3, 4])
    image = begun_ahead(bench, keys)
    bench.publish([1, 2, 3, 4])  # the budget holds the first page only
    bench.cache.finish_image(image)
    assert bench.cache.images.num_free == 2
    assert bench.cache.counters.images_kept == 0
    bench.check()


def test_an_image_numbered_ahead_can_be_cancelled() -> None:
    bench = Bench(num_images=1)
    keys = keys_of([1, 2])
    bench.cache.cancel_image(begun_ahead(bench, keys))
    assert bench.cache.images.num_free == 1
    bench.check()
    bench.cache.finish_image(begun_ahead(bench, keys))
    bench.check()


def test_two_requests_of_one_step_make_one_image() -> None:
    bench = Bench()
    keys = keys_of([1, 2, 3, 4])
    image = begun_ahead(bench, keys)
    assert bench.cache.begin_image_ahead(keys, ImageRole.DECODE) is None
    bench.publish([1, 2, 3, 4])
    bench.cache.finish_image(image)
    assert bench.cache.begin_image_ahead(keys, ImageRole.DECODE) is None
    assert image.role is ImageRole.PROMPT


def test_a_page_that_collides_while_an_image_is_made_gets_no_image_of_another_text() -> None:
    bench = Bench()
    (key,) = keys_of([1, 2])
    other = dataclasses.replace(key, content=dataclasses.replace(key.content, token_ids=(8, 9)))
    image = begun_ahead(bench, [key])
    page = bench.pool.take()
    bench.cache.publish([other], page)
    bench.cache.finish_image(image)
    assert bench.cache.match([other], 3).num_tokens == 0
    assert bench.cache.images.num_free == bench.cache.images.num_slots
    bench.check(*page)
    assert bench.cache.begin_image_ahead([key], ImageRole.PROMPT) is None


def test_an_answer_does_not_displace_the_end_of_its_prompt_when_numbered_ahead() -> None:
    bench = Bench(num_images=1)
    keys = bench.publish([1, 2, 3, 4])
    bench.keep(keys[1], ImageRole.PROMPT)
    longer = keys_of([1, 2, 3, 4, 5, 6, 7, 8])
    assert bench.cache.begin_image_ahead(longer, ImageRole.DECODE) is None
    assert bench.match([1, 2, 3, 4, 5]).num_tokens == 4


def test_a_cache_without_pages_numbers_nothing_ahead() -> None:
    assert Bench(max_pages=0).cache.begin_image_ahead(keys_of([1, 2]), ImageRole.PROMPT) is None
