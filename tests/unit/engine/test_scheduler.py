import dataclasses
import pickle
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from flash41.engine.events import SampledToken, TokenEvent
from flash41.engine.limits import SchedulerLimits
from flash41.engine.plan import StepPlan
from flash41.engine.request import FinishReason, Request, SamplingParams
from flash41.engine.scheduler import Scheduler
from flash41.errors import RequestError

EOS = 1
WORD = 7


def scheduler(
    max_num_seqs: int = 4, max_num_batched_tokens: int = 16, max_model_len: int = 100, look_back: int = 3
) -> Scheduler:
    return Scheduler(
        SchedulerLimits(
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            max_model_len=max_model_len,
            look_back=look_back,
        )
    )


def request(request_id: int, length: int = 3, **values: Any) -> Request:
    """A prompt whose ids say where they stand."""
    ids = tuple(100 * (request_id + 1) + position for position in range(length))
    params = SamplingParams(**{"max_tokens": 1000, **values})
    return Request(request_id=request_id, prompt_ids=ids, params=params, seed=0, eos_token_id=EOS)


def sampled(plan: StepPlan, token_id: int = WORD) -> dict[int, SampledToken]:
    return {span.request_id: SampledToken(token_id=token_id) for span in plan.spans if span.samples}


def step(tested: Scheduler, tokens: Mapping[int, int] | None = None) -> tuple[StepPlan, Sequence[TokenEvent]]:
    """One step in which every request that may gets a token, its own or WORD."""
    plan = tested.plan()
    assert plan is not None
    own = {request_id: SampledToken(token_id=token_id) for request_id, token_id in (tokens or {}).items()}
    events = tested.commit(plan, sampled(plan) | own)
    tested.check_integrity()
    return plan, events


def lengths(plan: StepPlan) -> list[tuple[int, int, int]]:
    """(request, start, rows) of every span."""
    return [(span.request_id, span.start, len(span.ids)) for span in plan.spans]


def test_without_requests_there_is_no_plan() -> None:
    assert scheduler().plan() is None


def test_a_prompt_that_fits_is_read_in_one_step_and_answered_row_by_row() -> None:
    tested = scheduler()
    tested.add(request(0, 5))
    plans = [step(tested)[0] for _ in range(3)]
    assert [lengths(plan) for plan in plans] == [[(0, 0, 5)], [(0, 5, 1)], [(0, 6, 1)]]
    assert all(span.samples for plan in plans for span in plan.spans)


def test_a_long_prompt_is_read_in_chunks_of_the_budget_and_only_its_last_row_chooses_a_token() -> None:
    tested = scheduler(max_num_batched_tokens=4)
    tested.add(request(0, 10))
    found = [step(tested) for _ in range(3)]
    assert [lengths(plan) for plan, _ in found] == [[(0, 0, 4)], [(0, 4, 4)], [(0, 8, 2)]]
    assert [plan.spans[0].samples for plan, _ in found] == [False, False, True]
    assert [len(events) for _, events in found] == [0, 0, 1]


def test_the_chunks_join_to_the_prompt_and_each_brings_the_ids_before_it() -> None:
    for budget in range(1, 8):
        tested = scheduler(max_num_batched_tokens=budget, look_back=3)
        asked = request(0, 7)
        tested.add(asked)
        spans = []
        while not asked.output_ids:
            spans += step(tested)[0].spans
        spans += step(tested)[0].spans  # the first row of the answer
        known = (*asked.prompt_ids, WORD)
        assert tuple(token_id for span in spans for token_id in span.ids) == known
        for span in spans:
            assert span.history == known[max(0, span.start - 3) : span.start], (budget, span)


@pytest.mark.parametrize("look_back", [0, 1, 5])
def test_the_history_is_as_long_as_the_look_back_and_spans_prompt_and_answer(look_back: int) -> None:
    tested = scheduler(look_back=look_back)
    asked = request(0, 2)
    tested.add(asked)
    for token_id in (31, 32, 33, 34):
        step(tested, {0: token_id})
    plan, _ = step(tested)
    known = (*asked.prompt_ids, 31, 32, 33, 34)
    assert plan.spans[0].ids == (34,)
    assert plan.spans[0].history == known[:-1][len(known) - 1 - look_back :]


def test_answers_go_before_prompts_whatever_came_first() -> None:
    tested = scheduler(max_num_batched_tokens=4)
    tested.add(request(0, 9))
    step(tested)
    tested.add(request(1, 2))
    step(tested)
    step(tested)  # request 0 has its first token, request 1 its whole prompt
    tested.add(request(2, 9))
    plan, _ = step(tested)
    assert lengths(plan) == [(0, 9, 1), (1, 2, 1), (2, 0, 2)]


def test_prompts_share_what_is_left_of_the_budget_in_order_of_arrival() -> None:
    tested = scheduler(max_num_batched_tokens=8)
    for request_id, length in ((5, 3), (2, 4), (9, 6)):
        tested.add(request(request_id, length))
    assert [lengths(step(tested)[0]) for _ in range(3)] == [
        [(5, 0, 3), (2, 0, 4), (9, 0, 1)],
        [(5, 3, 1), (2, 4, 1), (9, 1, 5)],
        [(5, 4, 1), (2, 5, 1), (9, 6, 1)],
    ]


def test_a_budget_below_the_number_of_answers_serves_the_oldest_first() -> None:
    tested = scheduler(max_num_seqs=3, max_num_batched_tokens=2)
    for request_id in range(3):
        tested.add(request(request_id, 1, max_tokens=2))
    found = [lengths(step(tested)[0]) for _ in range(3)]
    assert found == [[(0, 0, 1), (1, 0, 1)], [(0, 1, 1), (1, 1, 1)], [(2, 0, 1)]]


def test_requests_wait_for_a_slot_in_order_of_arrival() -> None:
    tested = scheduler(max_num_seqs=1)
    for request_id in (3, 1, 2):
        tested.add(request(request_id, 2, max_tokens=1))
    found = [step(tested) for _ in range(3)]
    assert [plan.spans[0].request_id for plan, _ in found] == [3, 1, 2]
    assert {plan.spans[0].slot for plan, _ in found} == {0}
    assert tested.plan() is None
    assert tested.num_unfinished == 0


def test_a_slot_that_was_freed_is_given_to_the_next_request_from_position_0() -> None:
    tested = scheduler(max_num_seqs=2)
    for request_id in range(3):
        tested.add(request(request_id))
    first, _ = step(tested, {0: EOS})
    second, _ = step(tested)
    assert [span.request_id for span in first.spans] == [0, 1]
    assert lengths(second) == [(1, 3, 1), (2, 0, 3)]
    assert second.spans[1].slot == first.spans[0].slot


@pytest.mark.parametrize(
    ("values", "tokens", "reason"),
    [
        ({}, [WORD, EOS], FinishReason.STOP),
        ({"stop_token_ids": (9,)}, [WORD, 9], FinishReason.STOP),
        ({"max_tokens": 2}, [WORD, WORD], FinishReason.LENGTH),
        ({"max_tokens": 3, "ignore_eos": True}, [EOS, EOS, EOS], FinishReason.LENGTH),
    ],
)
def test_the_last_event_says_why_an_answer_ended(
    values: dict[str, Any], tokens: list[int], reason: FinishReason
) -> None:
    tested = scheduler()
    asked = request(0, **values)
    tested.add(asked)
    events = [event for token_id in tokens for event in step(tested, {0: token_id})[1]]
    assert [event.token for event in events] == [SampledToken(token_id=token_id) for token_id in tokens]
    assert [event.finish_reason for event in events] == [None] * (len(tokens) - 1) + [reason]
    assert asked.finish_reason is reason
    assert asked.output_ids == tokens
    assert tested.num_unfinished == 0


def test_prompt_and_answer_together_are_as_long_as_max_model_len() -> None:
    tested = scheduler(max_model_len=6)
    asked = request(0, 4)
    tested.add(asked)
    plans = []
    while asked.finish_reason is None:
        plans.append(step(tested)[0])
    assert asked.finish_reason is FinishReason.LENGTH
    assert len(asked.output_ids) == 2
    assert lengths(plans[-1]) == [(0, 4, 1)]  # no row lies at position max_model_len - 1: its token ends the answer


@pytest.mark.parametrize(
    ("length", "message"),
    [
        (0, r"prompt: got \[\], expected at least one token"),
        (6, r"prompt length: got 6, expected fewer tokens than max_model_len 6 \(shorten it or raise max_model_len\)"),
        (700, r"prompt length: got 700"),
    ],
)
def test_a_request_that_can_never_run_is_refused_naming_the_limit(length: int, message: str) -> None:
    tested = scheduler(max_model_len=6)
    with pytest.raises(RequestError, match=message):
        tested.add(request(0, length))
    assert tested.num_unfinished == 0
    tested.add(request(1, 5))
    assert lengths(step(tested)[0]) == [(1, 0, 5)]


def test_an_aborted_request_is_gone_whether_it_waits_reads_or_answers() -> None:
    tested = scheduler(max_num_seqs=2, max_num_batched_tokens=4)
    answering, reading, waiting = (request(request_id, length) for request_id, length in ((0, 1), (1, 9), (2, 1)))
    for asked in (answering, reading, waiting):
        tested.add(asked)
    step(tested)
    for number, asked in enumerate((waiting, reading, answering)):
        (event,) = tested.abort(asked.request_id)
        assert event == TokenEvent(request_id=asked.request_id, token=None, finish_reason=FinishReason.ABORT)
        assert asked.finish_reason is FinishReason.ABORT
        assert tested.num_unfinished == 2 - number
        tested.check_integrity()
    assert tested.plan() is None


def test_aborting_what_is_unknown_or_finished_changes_nothing() -> None:
    tested = scheduler()
    asked = request(0, max_tokens=1)
    tested.add(asked)
    assert tested.abort(1) == []
    step(tested)
    assert tested.abort(0) == []
    assert asked.finish_reason is FinishReason.LENGTH


def test_a_request_aborted_while_its_step_runs_leaves_no_token_and_no_slot() -> None:
    tested = scheduler(max_num_seqs=2)
    first, second = request(0), request(1)
    tested.add(first)
    tested.add(second)
    plan = tested.plan()
    assert plan is not None
    tested.abort(0)
    events = tested.commit(plan, sampled(plan))
    assert [event.request_id for event in events] == [1]
    assert first.output_ids == []
    tested.check_integrity()
    assert lengths(step(tested)[0]) == [(1, 3, 1)]


def test_the_requests_of_a_plan_are_those_that_choose_a_token_in_the_order_of_their_rows() -> None:
    tested = scheduler(max_num_batched_tokens=6)
    for request_id, length in ((0, 2), (1, 3), (2, 5)):
        tested.add(request(request_id, length))
    plan = tested.plan()
    assert plan is not None
    assert [asked.request_id for asked in tested.requests(plan)] == [0, 1]


def test_a_plan_is_integers_that_can_be_compared_hashed_and_sent() -> None:
    tested, twin = scheduler(), scheduler()
    for one in (tested, twin):
        one.add(request(0, 3))
        step(one)
    plan, other = tested.plan(), twin.plan()
    assert plan is not None
    assert plan == other
    assert hash(plan) == hash(other)
    assert pickle.loads(pickle.dumps(plan)) == plan
    assert plan.num_rows == 1
    (span,) = plan.spans
    values = list(dataclasses.astuple(span))
    assert all(isinstance(value, (bool, int, tuple)) for value in values)
    assert all(type(token_id) is int for token_id in (*span.ids, *span.history))


def test_lost_slots_are_noticed() -> None:
    tested = scheduler(max_num_seqs=2)
    tested.add(request(0))
    step(tested)
    tested._free_slots.append(0)
    with pytest.raises(AssertionError):
        tested.check_integrity()


class SchedulerMachine(RuleBasedStateMachine):
    """Requests that come, run and go in any order, beside a plain account of what each of them is owed."""

    @initialize(
        num_slots=st.integers(1, 3), budget=st.integers(1, 9), longest=st.integers(4, 20), look_back=st.integers(0, 3)
    )
    def start(self, num_slots: int, budget: int, longest: int, look_back: int) -> None:
        self.tested = scheduler(num_slots, budget, longest, look_back)
        self.open: dict[int, Request] = {}  # in order of arrival
        self.num_rows: dict[int, int] = {}
        self.slots: dict[int, int] = {}
        self.num_seen = 0

    @rule(length=st.integers(1, 12), max_tokens=st.integers(1, 6))
    def submit(self, length: int, max_tokens: int) -> None:
        asked = request(self.num_seen, length, max_tokens=max_tokens)
        self.num_seen += 1
        if length >= self.tested.limits.max_model_len:
            with pytest.raises(RequestError):
                self.tested.add(asked)
        else:
            self.tested.add(asked)
            self.open[asked.request_id] = asked
            self.num_rows[asked.request_id] = 0

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        self._abort(data.draw(st.sampled_from(sorted(self.open))))

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def step(self, data: st.DataObject) -> None:
        plan = self.tested.plan()
        assert plan is not None
        self._check(plan)
        if data.draw(st.integers(0, 5)) == 0:
            self._abort(data.draw(st.sampled_from(sorted(self.open))))
        tokens = {
            span.request_id: SampledToken(token_id=data.draw(st.sampled_from((WORD, WORD, WORD, EOS))))
            for span in plan.spans
            if span.samples
        }
        self._commit(plan, tokens)

    @invariant()
    def slots_add_up(self) -> None:
        if hasattr(self, "tested"):
            self.tested.check_integrity()
            assert self.tested.num_unfinished == len(self.open)

    def teardown(self) -> None:
        # Whatever happened, the rest ends: every step computes at least one row of what is left.
        while hasattr(self, "tested") and self.open:
            plan = self.tested.plan()
            assert plan is not None
            self._check(plan)
            self._commit(plan, sampled(plan))

    def _abort(self, request_id: int) -> None:
        (event,) = self.tested.abort(request_id)
        assert event.finish_reason is FinishReason.ABORT
        self._forget(request_id)

    def _forget(self, request_id: int) -> None:
        del self.open[request_id], self.num_rows[request_id]
        self.slots.pop(request_id, None)

    def _known(self, request_id: int) -> tuple[int, ...]:
        asked = self.open[request_id]
        return (*asked.prompt_ids, *asked.output_ids)

    def _check(self, plan: StepPlan) -> None:
        limits = self.tested.limits
        admitted = list(self.open)[: limits.max_num_seqs]
        owed = {request_id: len(self._known(request_id)) - self.num_rows[request_id] for request_id in admitted}
        budget, expected = limits.max_num_batched_tokens, []
        for is_prompt in (False, True):
            for request_id in (one for one in admitted if (owed[one] > 1) == is_prompt):
                length = min(owed[request_id], budget)
                budget -= length
                expected += [(request_id, self.num_rows[request_id], length)] if length else []
        assert lengths(plan) == expected
        for span in plan.spans:
            known, end = self._known(span.request_id), span.start + len(span.ids)
            assert span.ids == known[span.start : end]
            assert span.history == known[max(0, span.start - limits.look_back) : span.start]
            assert span.samples == (end == len(known))
            assert self.slots.setdefault(span.request_id, span.slot) == span.slot
        assert len(set(self.slots.values())) == len(self.slots)

    def _commit(self, plan: StepPlan, tokens: Mapping[int, SampledToken]) -> None:
        events = {event.request_id: event for event in self.tested.commit(plan, tokens)}
        assert list(events) == [span.request_id for span in plan.spans if span.samples and span.request_id in self.open]
        for span in plan.spans:
            asked = self.open.get(span.request_id)
            if asked is None:
                continue
            self.num_rows[span.request_id] += len(span.ids)
            if not span.samples:
                continue
            token_id, event = tokens[span.request_id].token_id, events[span.request_id]
            assert asked.output_ids[-1] == token_id
            full = len(self._known(span.request_id)) == self.tested.limits.max_model_len
            length = FinishReason.LENGTH if full or len(asked.output_ids) == asked.params.max_tokens else None
            assert event.finish_reason is (FinishReason.STOP if token_id == EOS else length)
            if event.finish_reason is not None:
                self._forget(span.request_id)


TestAnyCourseOfEvents = SchedulerMachine.TestCase
TestAnyCourseOfEvents.settings = settings(
    max_examples=60, stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
