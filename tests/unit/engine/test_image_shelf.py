"""Leases of pictures in integers: who is encoded when, what stays, and what goes."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flash41.chat.images import Picture
from flash41.engine.image_shelf import ImageShelf, ShelfLimits
from flash41.engine.prompt_images import placed
from flash41.engine.request import Request
from flash41.errors import RequestError
from helpers.answers import asking
from helpers.picturing import drawn

IMAGE = 511
SMALL = [drawn(60, 45, seed=seed) for seed in range(6)]
"""Ten rows each."""
ROWS, PATCHES = SMALL[0].plan.num_tokens, SMALL[0].plan.num_patches


def showing(number: int, *pictures: Picture) -> Request:
    """A text token, then each picture with a text token behind it."""
    ids, images = placed([0, *(token for _ in pictures for token in (IMAGE, 7))], pictures, IMAGE)
    return asking(number, ids, images=images)


def shelf(pictures: int = 2, per_step: int = 2) -> ImageShelf:
    return ImageShelf(ShelfLimits(num_rows=pictures * ROWS, num_patches=per_step * PATCHES))


def ran(tested: ImageShelf) -> tuple[list[bytes], list[bytes]]:
    """The step runs: identities it encodes and forgets."""
    encodings, forgotten = tested.take()
    tested.commit(encodings)
    return [encoding.identity for encoding in encodings], list(forgotten)


def test_the_first_who_comes_to_a_picture_has_it_encoded_and_others_find_it() -> None:
    tested, first, second = shelf(), showing(1, SMALL[0]), showing(2, SMALL[0])
    assert tested.reach(first, 0, 12) == 12
    assert tested.reach(second, 0, 5) == 5
    assert ran(tested) == ([SMALL[0].identity], [])
    assert tested.reach(second, 5, 7) == 7
    assert ran(tested) == ([], [])
    assert (tested.num_encoded, tested.num_found, tested.num_rows) == (1, 1, ROWS)


def test_a_span_in_front_of_a_picture_or_behind_it_needs_nothing() -> None:
    tested, one = shelf(), showing(1, SMALL[0])
    assert (tested.reach(one, 0, 1), tested.reach(one, 11, 1)) == (1, 1)
    assert ran(tested) == ([], [])


def test_a_span_without_a_row_takes_no_lease() -> None:
    tested, one = shelf(), showing(1, SMALL[0])
    assert tested.reach(one, 5, 0) == 0
    assert ran(tested) == ([], [])
    assert tested.num_held == 0


def test_a_span_ends_in_front_of_a_picture_beyond_the_patches_of_a_step() -> None:
    tested, one = shelf(pictures=4, per_step=1), showing(1, SMALL[0], SMALL[1])
    assert tested.reach(one, 0, 23) == 12
    assert ran(tested) == ([SMALL[0].identity], [])
    assert tested.reach(one, 12, 11) == 11
    assert ran(tested) == ([SMALL[1].identity], [])


def test_a_span_inside_a_picture_that_cannot_be_had_has_no_row() -> None:
    tested, one, other = shelf(pictures=1), showing(1, SMALL[0]), showing(2, SMALL[1])
    assert tested.reach(one, 0, 4) == 4
    ran(tested)
    assert tested.reach(other, 1, 5) == 0
    tested.pass_by(one, 11)
    assert tested.reach(other, 1, 5) == 5
    assert ran(tested) == ([SMALL[1].identity], [SMALL[0].identity])


def test_rows_stay_until_they_are_in_the_way_the_least_recently_used_first() -> None:
    tested, requests = shelf(pictures=2, per_step=1), [showing(number, SMALL[number]) for number in range(3)]
    for one in requests[:2]:
        tested.reach(one, 0, 12)
        ran(tested)
        tested.leave(one)
    again = showing(9, SMALL[0])
    tested.reach(again, 0, 12)
    assert ran(tested) == ([], [])
    tested.leave(again)
    tested.reach(requests[2], 0, 12)
    assert ran(tested) == ([SMALL[2].identity], [SMALL[1].identity])


def test_a_picture_that_a_request_shows_twice_is_held_while_it_is_inside_of_it() -> None:
    tested, one = shelf(pictures=1), showing(1, SMALL[0], SMALL[0])
    tested.reach(one, 0, 15)
    assert ran(tested)[0] == [SMALL[0].identity]
    tested.pass_by(one, 12)
    assert tested.num_held == 0
    tested.reach(one, 12, 3)
    tested.pass_by(one, 15)
    assert tested.num_held == 1
    tested.pass_by(one, 22)
    assert (tested.num_held, tested.num_encoded) == (0, 1)


def test_a_step_that_broke_off_leaves_nothing_that_is_not_there() -> None:
    tested, one = shelf(), showing(1, SMALL[0])
    tested.reach(one, 0, 12)
    tested.take()
    tested.leave(one)
    assert tested.num_rows == 0
    again = showing(2, SMALL[0])
    tested.reach(again, 0, 12)
    assert ran(tested) == ([SMALL[0].identity], [SMALL[0].identity])  # whatever came of it goes before


def test_a_picture_that_could_never_be_encoded_is_refused() -> None:
    with pytest.raises(RequestError, match="got '1 images', expected text, as this engine was opened without its"):
        ImageShelf(None).check(showing(1, SMALL[0]))
    message = f"image: got '{ROWS} rows and {PATCHES} patches', expected at most 9 rows and 999 patches"
    with pytest.raises(RequestError, match=message):
        ImageShelf(ShelfLimits(num_rows=9, num_patches=999)).check(showing(1, SMALL[0]))
    ImageShelf(None).check(showing(1))


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_whoever_is_alone_gets_through_and_limits_hold_always(data: st.DataObject) -> None:
    tested = shelf(pictures=data.draw(st.integers(1, 3)), per_step=data.draw(st.integers(1, 2)))
    pool = st.lists(st.sampled_from(SMALL), min_size=1, max_size=3)
    requests = [showing(number, *data.draw(pool)) for number in range(3)]
    positions = dict.fromkeys(range(3), 0)
    there: set[bytes] = set()
    for _ in range(12):
        spans = {}
        for one in requests:
            left = len(one.prompt_ids) - positions[one.request_id]
            length = tested.reach(one, positions[one.request_id], min(left, data.draw(st.integers(1, 16))))
            spans[one.request_id] = length
        encodings, forgotten = tested.take()
        there = there - set(forgotten) | {encoding.identity for encoding in encodings}
        num_patches = sum(SMALL[0].plan.num_patches for _ in encodings)
        assert num_patches <= tested.limits.num_patches
        assert len(there) * ROWS <= tested.limits.num_rows
        tested.commit(encodings)
        for one in requests:
            start, length = positions[one.request_id], spans[one.request_id]
            for image in one.images:
                if image.planned.start < start + length and image.planned.end > start:
                    assert image.planned.identity in there
            positions[one.request_id] += length
            tested.pass_by(one, positions[one.request_id])
        tested.check_integrity([one.request_id for one in requests])
        waiting = [one for one in requests if positions[one.request_id] < len(one.prompt_ids)]
        assert not waiting or any(spans.values()), "nobody got on"
