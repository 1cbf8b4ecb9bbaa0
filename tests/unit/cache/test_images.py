"""Slots of STATE images: their life, who makes room for whom, and that every slot is in one place."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from flash41.cache.images import Image, ImageArena, ImageRole, ImageState
from flash41.errors import ProtocolError

RUNG, DECODE, PROMPT = ImageRole.RUNG, ImageRole.DECODE, ImageRole.PROMPT


def begun(arena: ImageArena, page: int, role: ImageRole = RUNG, ancestors: tuple[int, ...] = ()) -> Image:
    image = arena.begin(page, role, ancestors)
    assert image is not None
    return image


def kept(arena: ImageArena, page: int, role: ImageRole = RUNG, ancestors: tuple[int, ...] = ()) -> Image:
    image = begun(arena, page, role, ancestors)
    arena.finish(image, ancestors)
    return image


def test_an_image_may_be_restored_once_its_copy_has_ended() -> None:
    arena = ImageArena(2)
    image = begun(arena, 7)
    assert (image.slot, image.state, arena.is_ready(7)) == (0, ImageState.COPYING, False)
    arena.finish(image)
    assert arena.is_ready(7)
    assert arena.find(7) is image
    with pytest.raises(AssertionError, match="finished twice"):
        arena.finish(image)


def test_an_image_that_is_not_ready_is_not_restored() -> None:
    arena = ImageArena(1)
    begun(arena, 7)
    with pytest.raises(AssertionError, match="not ready"):
        arena.pin(7)


def test_a_page_has_one_image() -> None:
    arena = ImageArena(2)
    kept(arena, 7)
    with pytest.raises(AssertionError, match="has an image already"):
        arena.begin(7, RUNG)


def test_the_least_recently_used_image_makes_room() -> None:
    arena = ImageArena(2)
    kept(arena, 1)
    kept(arena, 2)
    arena.touch(1)
    arena.touch(99)
    kept(arena, 3)
    assert (arena.page_hashes, arena.num_evicted) == ({1, 3}, 1)


def test_a_restore_counts_as_use_and_its_image_stays() -> None:
    arena = ImageArena(2)
    kept(arena, 1)
    kept(arena, 2)
    image = arena.pin(1)
    kept(arena, 3)
    assert arena.page_hashes == {1, 3}
    assert arena.num_available == 1
    arena.unpin(image)
    assert arena.num_available == 2
    arena.touch(3)
    arena.unpin(arena.pin(1))
    kept(arena, 4)
    assert arena.page_hashes == {1, 4}
    with pytest.raises(AssertionError, match="without pins"):
        arena.unpin(image)


def test_nothing_is_evicted_for_an_image_that_does_not_fit() -> None:
    arena = ImageArena(2)
    kept(arena, 1)
    arena.pin(1)
    begun(arena, 2)
    assert arena.begin(3, PROMPT) is None
    assert (arena.page_hashes, arena.num_evicted) == ({1, 2}, 0)
    assert ImageArena(0).begin(1, PROMPT) is None


def test_rungs_make_room_first_and_displace_only_rungs() -> None:
    arena = ImageArena(2)
    kept(arena, 1, PROMPT)
    kept(arena, 2, RUNG)
    kept(arena, 3, RUNG)
    assert arena.page_hashes == {1, 3}
    kept(arena, 4, DECODE)
    assert arena.page_hashes == {1, 4}
    assert arena.begin(5, RUNG) is None


def test_a_text_never_displaces_the_end_of_its_own_prompt() -> None:
    # Pitfalls 91 and 93: with one slot the end of the prompt is the only image that a retry can match.
    arena = ImageArena(1)
    kept(arena, 1, PROMPT)
    assert arena.begin(2, DECODE, (1,)) is None
    assert arena.is_ready(1)
    kept(arena, 9, DECODE, (8,))
    assert arena.page_hashes == {9}


def test_the_next_prompt_of_a_dialogue_displaces_the_last_one() -> None:
    arena = ImageArena(1)
    kept(arena, 1, PROMPT)
    kept(arena, 2, PROMPT, (1,))
    assert arena.page_hashes == {2}


def test_an_earlier_boundary_of_the_same_text_becomes_a_rung() -> None:
    arena = ImageArena(4)
    kept(arena, 1, PROMPT)
    other = kept(arena, 8, DECODE, (7,))
    old = kept(arena, 2, DECODE, (1,))
    kept(arena, 3, DECODE, (2, 1))
    assert (old.role, other.role) == (RUNG, DECODE)
    kept(arena, 4, DECODE, (3, 2, 1))
    assert arena.page_hashes == {1, 8, 3, 4}


def test_a_role_is_raised_and_never_lowered() -> None:
    arena = ImageArena(1)
    image = kept(arena, 1, DECODE)
    arena.promote(1, RUNG)
    assert image.role is DECODE
    arena.promote(1, PROMPT)
    assert image.role is PROMPT


def test_a_cancelled_copy_frees_its_slot() -> None:
    arena = ImageArena(1)
    image = begun(arena, 1)
    arena.cancel(image)
    assert (arena.num_free, arena.find(1)) == (1, None)
    ready = kept(arena, 2)
    with pytest.raises(AssertionError, match="finished image is cancelled"):
        arena.cancel(ready)


@pytest.mark.parametrize("end", ["finish", "cancel"])
def test_an_image_orphaned_while_it_is_copied_frees_its_slot_when_the_copy_ends(end: str) -> None:
    arena = ImageArena(1)
    image = begun(arena, 1)
    assert arena.drop(1)
    assert (image.state, arena.num_free, arena.find(1)) == (ImageState.EVICTING, 0, None)
    assert arena.begin(1, PROMPT) is None
    getattr(arena, end)(image)
    assert (arena.num_free, arena.is_ready(1)) == (1, False)


def test_an_image_orphaned_while_it_is_restored_frees_its_slot_with_the_last_pin() -> None:
    arena = ImageArena(1)
    kept(arena, 1)
    image = arena.pin(1)
    assert arena.pin(1) is image
    assert arena.drop(1)
    arena.unpin(image)
    assert (image.state, arena.num_free) == (ImageState.EVICTING, 0)
    arena.unpin(image)
    assert arena.num_free == 1


def test_dropping_a_page_without_an_image_is_nothing() -> None:
    assert not ImageArena(1).drop(5)


def test_a_lost_slot_and_a_wrong_state_are_reported() -> None:
    arena = ImageArena(2)
    kept(arena, 1)
    arena._free.clear()
    with pytest.raises(ProtocolError, match=r"image slots: got '0 free \+ 1 filed \+ 0 leaving', expected .* == 2"):
        arena.check_integrity()
    arena = ImageArena(2)
    kept(arena, 1).state = ImageState.EVICTING
    with pytest.raises(ProtocolError, match=r"^image states: "):
        arena.check_integrity()


class Arena(RuleBasedStateMachine):
    """Images begun, finished, restored and orphaned in any order, with what each slot holds kept apart."""

    def __init__(self) -> None:
        super().__init__()
        self.arena = ImageArena(3)
        self.copying: list[Image] = []
        self.pinned: list[Image] = []
        self.content: dict[int, int] = {}

    @rule(page=st.integers(0, 5), role=st.sampled_from(list(ImageRole)))
    def begin(self, page: int, role: ImageRole) -> None:
        if self.arena.find(page) is not None:
            return
        before = self.arena.page_hashes
        image = self.arena.begin(page, role, range(page))
        if image is None:
            assert self.arena.page_hashes == before
            return
        busy = {other.slot for other in (*self.copying, *self.pinned)}
        assert image.slot not in busy, "a slot is overwritten while it is written or read"
        self.copying.append(image)
        self.content[image.slot] = page

    @precondition(lambda self: self.copying)
    @rule(data=st.data(), cancelled=st.booleans())
    def end_copy(self, data: st.DataObject, cancelled: bool) -> None:
        image = self.copying.pop(data.draw(st.integers(0, len(self.copying) - 1)))
        if cancelled:
            self.arena.cancel(image)
        else:
            self.arena.finish(image, range(image.page_hash))

    @rule(page=st.integers(0, 5))
    def restore(self, page: int) -> None:
        if self.arena.is_ready(page):
            image = self.arena.pin(page)
            assert self.content[image.slot] == page
            self.pinned.append(image)

    @precondition(lambda self: self.pinned)
    @rule(data=st.data())
    def end_restore(self, data: st.DataObject) -> None:
        image = self.pinned.pop(data.draw(st.integers(0, len(self.pinned) - 1)))
        assert self.content[image.slot] == image.page_hash, "an image changed while it was read"
        self.arena.unpin(image)

    @rule(page=st.integers(0, 5))
    def drop(self, page: int) -> None:
        had = self.arena.find(page) is not None
        assert self.arena.drop(page) is had
        assert self.arena.find(page) is None

    @invariant()
    def every_slot_is_in_one_place(self) -> None:
        self.arena.check_integrity()
        assert self.arena.num_free <= self.arena.num_available <= self.arena.num_slots


TestArena = Arena.TestCase
TestArena.settings = settings(max_examples=80, stateful_step_count=25, deadline=None)
