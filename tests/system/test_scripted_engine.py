"""Thousands of requests without a model: answers never change, and everything is given back."""

import random
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from flash41.config.run import Draft
from flash41.engine.engine import Engine
from flash41.engine.events import SampledToken, Verified
from flash41.engine.image_shelf import ShelfLimits
from flash41.engine.prompt_images import placed
from flash41.engine.request import FinishReason, Request
from helpers.picturing import drawn
from helpers.scripted_engine import (
    EOS,
    WIDTH,
    assert_all_given_back,
    expected_answer,
    next_token,
    scripted_engine,
    scripted_request,
)


def run(tested: Engine, *asked: Request) -> None:
    for one in asked:
        tested.add(one)
    while tested.num_unfinished:
        tested.step()
        tested.scheduler.check_integrity()


def text_of(one: Request) -> tuple[int, ...]:
    return (*one.prompt_ids, *one.output_ids)


def continued(dice: random.Random, texts: Sequence[tuple[int, ...]], longest: int) -> tuple[int, ...]:
    """A prompt that begins like an earlier text, or is new."""
    old = dice.choice(texts) if texts and dice.random() < 0.8 else ()
    kept = old[: dice.randint(0, len(old))] if dice.random() < 0.5 else old
    return (*kept, *(dice.randint(2, 7) for _ in range(dice.randint(1, 9))))[-(longest - 1) :]


@pytest.mark.parametrize("draft", list(Draft), ids=lambda draft: draft.value)
@pytest.mark.parametrize("num_images", [0, 1, 12])
def test_two_thousand_requests_leave_the_pool_as_at_start(num_images: int, draft: Draft) -> None:
    count = 2000 if num_images == 12 and draft is Draft.OFF else 300 if draft is Draft.OFF else 200
    dice, longest = random.Random(num_images), 24
    tested = scripted_engine(
        num_pages=24 if num_images > 1 else 14, num_images=num_images, slots=5, rows=20, longest=longest, draft=draft
    )
    texts: list[tuple[int, ...]] = []
    opened: dict[int, Request] = {}
    aborted = 0
    for number in range(count):
        one = scripted_request(
            number, continued(dice, texts, longest), dice.randint(1, 9), salt=b"x" * (number % 7 == 0)
        )
        tested.add(one)
        opened[number] = one
        for _ in range(dice.randint(0, 4)):
            tested.step()
        if dice.random() < 0.1:
            aborted += len(tested.abort(dice.choice(list(opened))))
        texts = texts[-20:] + [text_of(old) for old in opened.values() if old.finish_reason is FinishReason.STOP]
        for key in [key for key, old in opened.items() if old.finish_reason is not None]:
            check(opened.pop(key), longest)
        if number % 100 == 0:
            tested.scheduler.check_integrity()
    run(tested)
    for one in opened.values():
        check(one, longest)
    assert aborted > 5
    stats = tested.stats
    assert stats.num_hits > count // 20 if num_images == 12 else stats.num_hits >= num_images
    assert stats.num_preemptions > 0 or (num_images == 12 and draft is not Draft.OFF)
    if draft is Draft.ON:
        assert 0 < sum(stats.accepted_tokens) < sum(stats.drafted_tokens)
        assert stats.num_block_tokens > 1.2 * stats.num_draft_blocks
    assert_all_given_back(tested)


def test_requests_with_pictures_come_and_go_and_leave_no_lease() -> None:
    pictures = [drawn(60, 45, seed=seed) for seed in range(4)]
    num_rows, num_patches = pictures[0].plan.num_tokens, pictures[0].plan.num_patches
    dice, longest = random.Random(5), 40
    tested = scripted_engine(
        num_pages=15,
        slots=4,
        rows=12,
        longest=longest,
        pictures=ShelfLimits(num_rows=2 * num_rows, num_patches=num_patches),
    )
    opened: dict[int, Request] = {}
    for number in range(150):
        text = [dice.randint(2, 7) for _ in range(dice.randint(1, 6))]
        shown = [dice.choice(pictures) for _ in range(dice.randint(0, 2))]
        places = sorted(dice.sample(range(len(text) + 1), min(len(shown), len(text) + 1)), reverse=True)
        for place in places:
            text.insert(place, 0)
        ids, images = placed(text, shown[: len(places)], 0)
        one = scripted_request(number, ids, dice.randint(4, 12))
        one.images = images
        tested.add(one)
        opened[number] = one
        for _ in range(dice.randint(0, 4)):
            tested.step()
            tested.scheduler.check_integrity()
        if dice.random() < 0.15:
            tested.abort(dice.choice(list(opened)))
        for key in [key for key, old in opened.items() if old.finish_reason is not None]:
            check(opened.pop(key), longest)
    run(tested)
    for one in opened.values():
        check(one, longest)
    shelf = tested.scheduler.shelf
    assert shelf.num_held == 0
    assert tested.stats.num_pictures_encoded > 20
    assert tested.stats.num_pictures_found > 20
    assert tested.stats.num_preemptions > 0
    assert_all_given_back(tested)


def test_whole_blocks_are_drafted_where_pages_are_plenty() -> None:
    tested = scripted_engine(num_pages=99, num_images=0, slots=3, rows=18, longest=64, draft=Draft.ON)
    asked = [scripted_request(number, (2 + number % 5, 2 + number % 3, 3), 40) for number in range(60)]
    run(tested, *asked)
    for one in asked:
        check(one, 64)
    stats = tested.stats
    assert len(stats.drafted_tokens) == WIDTH
    assert all(some <= more for more, some in pairwise(stats.accepted_tokens))
    assert stats.accepted_tokens[0] > 0
    assert sum(one.num_draft_tokens for one in asked) == sum(stats.drafted_tokens)
    assert sum(one.num_accepted_tokens for one in asked) == sum(stats.accepted_tokens)
    assert stats.num_block_tokens <= sum(len(one.output_ids) for one in asked)
    assert_all_given_back(tested)


def test_a_request_that_may_not_draft_runs_undrafted_among_others() -> None:
    tested = scripted_engine(num_pages=99, num_images=0, slots=2, draft=Draft.ON)
    asked = [scripted_request(number, (2, 3), 12) for number in range(2)]
    asked[0].undrafted_because = "images in the request"
    run(tested, *asked)
    for one in asked:
        check(one, 24)
    assert asked[0].num_draft_tokens == 0 < asked[1].num_draft_tokens
    assert_all_given_back(tested)


def test_a_step_never_has_more_rows_than_asked_and_drafts_starve_no_answer() -> None:
    tested = scripted_engine(num_pages=99, num_images=0, slots=3, rows=4, draft=Draft.ON)
    asked = [scripted_request(number, (2 + number, 3), 9) for number in range(3)]
    for one in asked:
        tested.add(one)
    runner: Any = tested.runner
    while tested.num_unfinished:
        before, answering = (
            runner.num_rows,
            {one.request_id for one in asked if one.output_ids and not one.finish_reason},
        )
        events = tested.step()
        assert runner.num_rows - before <= 4
        assert answering <= {event.request_id for event in events}
    for one in asked:
        check(one, 24)


def test_drafts_that_cannot_be_made_end_the_requests_they_were_for() -> None:
    tested = scripted_engine(num_pages=99, draft=Draft.ON)
    one = scripted_request(0, (2, 3), 9)
    tested.add(one)
    tested.step()
    runner: Any = tested.runner
    drafts, type(runner).draft = type(runner).draft, broken
    try:
        with pytest.raises(RuntimeError):
            tested.step()
    finally:
        type(runner).draft = drafts
    assert one.finish_reason is FinishReason.ABORT
    assert_all_given_back(tested)


def check(one: Request, longest: int) -> None:
    expected = expected_answer(one.prompt_ids, one.params.max_tokens, longest)
    if one.finish_reason is FinishReason.ABORT:
        expected = expected[: len(one.output_ids)]
    assert one.output_ids == expected


class ServingMachine(RuleBasedStateMachine):
    """Requests that come, go, give way and hit, in pools that are always too small."""

    @initialize(
        block_size=st.integers(1, 8),
        spare=st.integers(0, 6),
        slots=st.integers(1, 4),
        rows=st.integers(1, 12),
        longest=st.integers(3, 20),
        num_images=st.integers(0, 4),
        interval=st.integers(1, 3),
        decoder=st.booleans(),
        prefix=st.sampled_from([False, False, True]),
        draft=st.sampled_from(Draft),
    )
    def start(self, block_size: int, spare: int, longest: int, draft: Draft, **sizes: int) -> None:
        if sizes["decoder"] or sizes["prefix"]:
            draft = Draft.OFF  # refused together
        self.draft = draft
        pages = -(-longest // block_size) + spare
        self.longest = longest
        self.tested = scripted_engine(num_pages=pages, block_size=block_size, longest=longest, draft=draft, **sizes)
        self.open: list[Request] = []
        self.texts: list[tuple[int, ...]] = []
        self.num_seen = 0

    @rule(seed=st.integers(0, 1000), max_tokens=st.integers(1, 9), salt=st.sampled_from([b"", b"", b"s"]))
    def submit(self, seed: int, max_tokens: int, salt: bytes) -> None:
        ids = continued(random.Random(seed), self.texts, self.longest)
        one = scripted_request(self.num_seen, ids, max_tokens, salt)
        self.num_seen += 1
        self.tested.add(one)
        self.open.append(one)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        self.tested.abort(data.draw(st.sampled_from(self.open)).request_id)
        self._collect()

    @precondition(lambda self: self.open)
    @rule()
    def step(self) -> None:
        self.tested.step()
        self._collect()

    @precondition(lambda self: self.open)
    @rule()
    def lose_a_request_while_its_step_runs(self) -> None:
        scheduler = self.tested.scheduler
        plan = scheduler.plan()
        assert plan is not None
        requests = scheduler.requests(plan)
        logits = self.tested.runner.run(plan).logits  # type: ignore[arg-type]
        verified: Mapping[int, Verified] = {}
        if self.tested.drafting is not None:
            _, _, verified = self.tested.drafting.verify(plan, logits, requests)
        self.tested.abort(plan.spans[-1].request_id)
        scheduler.commit(plan, {one.request_id: chosen(text_of(one)) for one in requests}, verified)
        self._collect()

    @precondition(lambda self: self.tested.scheduler._running)
    @rule()
    def preempt(self) -> None:
        scheduler = self.tested.scheduler
        scheduler._preempt(scheduler._running[-1])

    @precondition(lambda self: self.open)
    @rule()
    def break_off_a_step(self) -> None:
        run = type(self.tested.runner).run
        try:
            type(self.tested.runner).run = broken  # type: ignore[method-assign, assignment]
            with pytest.raises(RuntimeError):
                self.tested.step()
        finally:
            type(self.tested.runner).run = run  # type: ignore[method-assign]
        self._collect()

    def _collect(self) -> None:
        for one in self.open:
            if one.finish_reason is not None:
                check(one, self.longest)
                self.texts = [*self.texts[-8:], text_of(one)]
        self.open = [one for one in self.open if one.finish_reason is None]

    @invariant()
    def everything_adds_up(self) -> None:
        if hasattr(self, "tested"):
            self.tested.scheduler.check_integrity()
            assert self.tested.num_unfinished == len(self.open)

    def teardown(self) -> None:
        if hasattr(self, "tested"):
            run(self.tested)
            self._collect()
            assert_all_given_back(self.tested)


def chosen(text: tuple[int, ...]) -> SampledToken:
    return SampledToken(token_id=next_token(text))


def broken(*_: object) -> None:
    raise RuntimeError("broken")


QUIET = [HealthCheck.too_slow]
TestServing = ServingMachine.TestCase
TestServing.settings = settings(max_examples=40, stateful_step_count=40, deadline=None, suppress_health_check=QUIET)


@pytest.mark.nightly
@pytest.mark.timeout(3600)
class TestServingForLong(ServingMachine.TestCase):  # type: ignore[name-defined, misc]
    """10,000 steps."""

    settings = settings(max_examples=100, stateful_step_count=100, deadline=None, suppress_health_check=QUIET)


def test_the_checks_of_the_scripted_engine_notice_a_row_of_another_text() -> None:
    tested = scripted_engine(num_pages=8)
    text = (*range(2, 8), 2)
    run(tested, scripted_request(0, text, 1))
    runner: Any = tested.runner
    runner.pages = dict.fromkeys(runner.pages, (EOS,))
    tested.add(scripted_request(1, text, 1))
    with pytest.raises(AssertionError, match="a row of another text"):
        tested.step()


def test_a_hit_computes_only_what_is_not_cached() -> None:
    tested = scripted_engine(num_pages=8)
    text = (*range(2, 8), 2)
    run(tested, scripted_request(0, text, 1))
    runner: Any = tested.runner
    assert runner.num_rows == 7
    run(tested, scripted_request(1, text, 1))
    assert runner.num_rows == 7 + 1
    stats = tested.stats
    assert (stats.num_lookups, stats.num_hits, stats.wanted_tokens, stats.cached_tokens) == (2, 1, 14, 6)
    assert (stats.num_kept_pages, stats.num_images) == (2, 1)
