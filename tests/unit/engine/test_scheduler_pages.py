"""Pages of the scheduler: who is admitted, who gives way, and that everybody ends."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from flash41.engine.events import SampledToken
from flash41.engine.limits import SchedulerLimits
from flash41.engine.plan import StepPlan
from flash41.engine.request import FinishReason, Request, SamplingParams
from flash41.engine.scheduler import Scheduler
from flash41.errors import ProtocolError

EOS, WORD = 1, 7


def scheduler(
    num_pages: int | None, *, block_size: int = 4, max_num_seqs: int = 4, rows: int = 64, longest: int = 16
) -> Scheduler:
    return Scheduler(
        SchedulerLimits(
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=rows,
            max_model_len=longest,
            look_back=2,
            block_size=block_size,
            num_pages=num_pages,
        )
    )


def request(request_id: int, length: int = 3, **values: Any) -> Request:
    params = SamplingParams(**{"max_tokens": 1000, **values})
    ids = tuple(range(100 * request_id + 10, 100 * request_id + 10 + length))
    return Request(request_id=request_id, prompt_ids=ids, params=params, seed=0, eos_token_id=EOS)


def planned(tested: Scheduler) -> StepPlan:
    plan = tested.plan()
    assert plan is not None
    tested.check_integrity()
    return plan


def commit(tested: Scheduler, plan: StepPlan, token_id: int = WORD) -> None:
    tokens = {span.request_id: SampledToken(token_id=token_id) for span in plan.spans if span.samples}
    tested.commit(plan, tokens)
    tested.check_integrity()


def lengths(plan: StepPlan) -> list[tuple[int, int, int]]:
    """(request, start, rows) of every span."""
    return [(span.request_id, span.start, len(span.ids)) for span in plan.spans]


def step(tested: Scheduler, token_id: int = WORD) -> list[tuple[int, int, int]]:
    plan = planned(tested)
    commit(tested, plan, token_id)
    return lengths(plan)


def finish(tested: Scheduler, asked: Sequence[Request], most_steps: int = 2000) -> None:
    for _ in range(most_steps):
        if not tested.num_unfinished:
            break
        step(tested)
    assert all(one.finish_reason is FinishReason.LENGTH for one in asked)
    assert tested._pages.num_free == tested._pages.num_pages


def with_requests(tested: Scheduler, *asked: Request) -> Scheduler:
    for one in asked:
        tested.add(one)
    return tested


# Pages of one request.


def test_a_span_names_the_pages_of_all_its_positions_and_takes_one_when_a_page_is_full() -> None:
    tested = with_requests(scheduler(4), request(0, 3))
    pages = []
    for _ in range(6):
        plan = planned(tested)
        pages.append(plan.spans[0].pages)
        commit(tested, plan)
    assert pages == [(0,), (0,), (0, 1), (0, 1), (0, 1), (0, 1)]


@pytest.mark.parametrize("length", [1, 3, 4, 5, 15])
@pytest.mark.parametrize("rows", [1, 3, 64])
def test_a_request_alone_ends_in_a_pool_that_just_holds_it(length: int, rows: int) -> None:
    asked = request(0, length)
    tested = with_requests(scheduler(4, rows=rows), asked)
    finish(tested, [asked])
    assert len(asked.output_ids) == 16 - length
    assert tested.num_preemptions == 0


def test_a_pool_too_small_for_one_request_is_a_mistake_of_whoever_made_it() -> None:
    with pytest.raises(AssertionError, match="3 pages cannot hold one request of 4"):
        scheduler(3)


def test_without_a_number_of_pages_nobody_ever_gives_way() -> None:
    asked = [request(number, 9 - number) for number in range(6)]
    tested = with_requests(scheduler(None, max_num_seqs=3), *asked)
    finish(tested, asked)
    assert tested.num_preemptions == 0


# Admission.


def test_a_request_is_admitted_when_free_pages_hold_its_tokens_besides_what_earlier_ones_need() -> None:
    tested = with_requests(scheduler(4, rows=4), request(0, 9), request(1, 4), request(2, 1))
    # Request 0 is promised 3 of 4 pages, request 1 the last one, request 2 none.
    assert step(tested) == [(0, 0, 4)]
    assert sorted(running.request.request_id for running in tested._running) == [0, 1]
    assert step(tested) == [(0, 4, 4)]
    assert step(tested) == [(0, 8, 1), (1, 0, 3)]


def test_a_page_is_promised_once() -> None:
    tested = with_requests(scheduler(4, rows=1), *(request(number, 5) for number in range(4)))
    step(tested)
    assert [running.request.request_id for running in tested._running] == [0, 1]
    step(tested)
    assert [running.request.request_id for running in tested._running] == [0, 1]


def test_nobody_overtakes_a_request_that_waits_for_pages() -> None:
    tested = with_requests(scheduler(4), request(0, 8), request(1, 12), request(2, 1))
    step(tested)
    assert [running.request.request_id for running in tested._running] == [0]


# Preemption.


def test_an_answer_takes_the_pages_of_the_request_admitted_last_which_is_computed_again() -> None:
    first, second, third = (request(number, 4) for number in range(3))
    tested = with_requests(scheduler(4), first, second, third)
    assert step(tested) == [(0, 0, 4), (1, 0, 4), (2, 0, 4)]
    # One page is left for three answers: the first takes it, the second takes that of the third.
    assert step(tested) == [(0, 4, 1), (1, 4, 1)]
    assert tested.num_preemptions == 1
    assert third.output_ids == [WORD]
    assert third.finish_reason is None
    for position in (5, 6, 7):
        assert step(tested) == [(0, position, 1), (1, position, 1)]
    # Now the first needs a third page: the second goes, and stands in line before the third.
    assert step(tested) == [(0, 8, 1)]
    assert [waiting.request_id for waiting in tested._waiting] == [1, 2]
    assert tested.num_preemptions == 2
    finish(tested, [first, second, third])
    assert [len(one.output_ids) for one in (first, second, third)] == [12, 12, 12]


def test_a_request_that_gave_way_is_read_again_with_its_answer_and_goes_on_behind_it() -> None:
    first, second = request(0, 4, max_tokens=2), request(1, 10, max_tokens=4)
    tested = with_requests(scheduler(4, rows=14), first, second)
    assert step(tested, 21) == [(0, 0, 4), (1, 0, 10)]
    assert step(tested, 22) == [(0, 4, 1)]  # second gave its three pages
    plan = planned(tested)
    (span,) = plan.spans
    assert (span.request_id, span.start, span.ids) == (1, 0, (*second.prompt_ids, 21))
    assert span.samples
    assert span.history == ()
    commit(tested, plan, 23)
    assert second.output_ids == [21, 23]


def test_an_answer_takes_no_page_of_a_prompt_that_was_admitted_before_it() -> None:
    prompt, answer = request(0, 12), request(1, 1)
    tested = with_requests(scheduler(4, rows=2), prompt, answer)
    for position in range(8):
        assert step(tested) == [(1, position, 1), (0, position, 1)]
    # Each holds two full pages and needs a third: the newer one gives way, although answers are planned first.
    assert step(tested) == [(0, 8, 2)]
    assert [running.request.request_id for running in tested._running] == [0]
    assert tested.num_preemptions == 1
    finish(tested, [prompt, answer])


def test_nobody_gives_way_to_an_answer_that_has_no_row_in_this_step() -> None:
    first, second, third = request(0, 3), request(1, 4), request(2, 4)
    tested = with_requests(scheduler(4, rows=11), first, second, third)
    step(tested)
    tested.limits = dataclasses.replace(tested.limits, max_num_batched_tokens=1)
    tested._pages.take(1)  # a page that nobody else can have
    plan = tested.plan()
    assert plan is not None
    assert lengths(plan) == [(0, 3, 1)]
    assert tested.num_preemptions == 0  # the second answer needs a page, but its turn comes later


def test_prompts_that_share_all_pages_go_on_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = [request(number, 13, max_tokens=2) for number in range(2)]
    tested = with_requests(scheduler(4, rows=8), *asked)
    admit = Scheduler._admit

    def generous(self: Scheduler) -> None:
        """Promises every page to everybody."""
        with monkeypatch.context() as patch:
            patch.setattr(type(self._pages), "num_free", property(lambda _: 1000))
            admit(self)

    monkeypatch.setattr(Scheduler, "_admit", generous)
    assert step(tested) == [(0, 0, 8)]
    # Half of the pages are the first prompt's; give the rest to the second one.
    tested._running[1].table.append(8)
    tested._running[1].num_computed = 8
    assert step(tested) == [(0, 8, 5)]
    assert tested.num_preemptions == 1
    monkeypatch.setattr(Scheduler, "_admit", admit)
    finish(tested, asked)


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_every_request_ends_with_all_its_tokens_in_any_pool(data: st.DataObject) -> None:
    block_size = data.draw(st.sampled_from((1, 2, 4, 5)), label="block_size")
    longest = data.draw(st.integers(2, 20), label="longest")
    least = -(-longest // block_size)
    tested = scheduler(
        least + data.draw(st.integers(0, 4), label="pages more"),
        block_size=block_size,
        max_num_seqs=data.draw(st.integers(1, 4), label="slots"),
        rows=data.draw(st.integers(1, 12), label="rows"),
        longest=longest,
    )
    asked = []
    for number in range(data.draw(st.integers(1, 6), label="requests")):
        length = data.draw(st.integers(1, longest - 1), label="prompt")
        asked.append(request(number, length, max_tokens=data.draw(st.integers(1, 9), label="answer")))
    finish(with_requests(tested, *asked), asked)
    for one in asked:
        assert len(one.output_ids) == min(one.params.max_tokens, longest - len(one.prompt_ids))


class PageMachine(RuleBasedStateMachine):
    """Requests in a pool that is always too small, beside an account of what each has computed."""

    @initialize(
        block_size=st.integers(1, 4),
        spare=st.integers(0, 3),
        slots=st.integers(1, 4),
        rows=st.integers(1, 9),
        longest=st.integers(3, 14),
    )
    def start(self, block_size: int, spare: int, slots: int, rows: int, longest: int) -> None:
        pages = -(-longest // block_size) + spare
        self.tested = scheduler(pages, block_size=block_size, max_num_seqs=slots, rows=rows, longest=longest)
        self.open: dict[int, Request] = {}
        self.computed: dict[int, int] = {}
        self.num_seen = 0

    @rule(length=st.integers(1, 13), max_tokens=st.integers(1, 8))
    def submit(self, length: int, max_tokens: int) -> None:
        asked = request(self.num_seen, min(length, self.tested.limits.max_model_len - 1), max_tokens=max_tokens)
        self.num_seen += 1
        self.tested.add(asked)
        self.open[asked.request_id], self.computed[asked.request_id] = asked, 0

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.open)))
        self.tested.abort(request_id)
        del self.open[request_id], self.computed[request_id]

    @precondition(lambda self: self.open)
    @rule(ends=st.booleans(), lost=st.booleans())
    def step(self, ends: bool, lost: bool) -> None:
        before = [running.request.request_id for running in self.tested._running]
        num_preemptions = self.tested.num_preemptions
        plan = planned(self.tested)
        self._check(plan, before, self.tested.num_preemptions - num_preemptions)
        if lost:  # a request of the step goes while it runs
            self.tested.abort(plan.spans[0].request_id)
            self.open.pop(plan.spans[0].request_id)
        commit(self.tested, plan, EOS if ends else WORD)
        self.open = {number: one for number, one in self.open.items() if one.finish_reason is None}

    def _check(self, plan: StepPlan, before: list[int], num_preempted: int) -> None:
        tested, limits = self.tested, self.tested.limits
        running = [one.request.request_id for one in tested._running]
        waiting = [one.request_id for one in tested._waiting]
        # Arrival decides everything: who runs came before who waits, and who gave way was the newest.
        assert running + waiting == sorted(self.open)
        assert num_preempted >= len(set(before) - set(running))
        assert 0 < plan.num_rows <= limits.max_num_batched_tokens
        used = [page_id for one in tested._running for page_id in one.table.page_ids]
        assert len(used) == len(set(used))
        for span in plan.spans:
            assert span.request_id in running  # nobody who gave way is part of the step
            start = self.computed[span.request_id]
            assert span.start in (0, start), "computed rows go on, or begin anew"
            self.computed[span.request_id] = span.start + len(span.ids)
            asked = self.open[span.request_id]
            known = (*asked.prompt_ids, *asked.output_ids)
            assert span.ids == known[span.start : span.start + len(span.ids)]
            assert span.samples == (span.start + len(span.ids) == len(known))
            assert len(span.pages) == -(-(span.start + len(span.ids)) // limits.block_size)

    @invariant()
    def everything_adds_up(self) -> None:
        if hasattr(self, "tested"):
            self.tested.check_integrity()
            assert self.tested.num_unfinished == len(self.open)

    def teardown(self) -> None:
        if hasattr(self, "tested"):
            finish(self.tested, list(self.open.values()))


TestPageMachine = PageMachine.TestCase
TestPageMachine.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


def test_lost_pages_are_noticed() -> None:
    tested = with_requests(scheduler(4), request(0, 5))
    step(tested)
    tested._running[0].table._page_ids.pop()
    with pytest.raises(ProtocolError, match="page references"):
        tested.check_integrity()
