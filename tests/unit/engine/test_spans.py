"""The rows of one request that a step computes, and those that its successor will probably begin with."""

from typing import Any

import pytest

from flash41.cache.pages import PagePool, PageTable
from flash41.engine.events import SampledToken
from flash41.engine.limits import SchedulerLimits
from flash41.engine.plan import StepPlan
from flash41.engine.request import Request, SamplingParams
from flash41.engine.running import Running
from flash41.engine.scheduler import Scheduler
from flash41.engine.spans import planned_span


def scheduler(**limits: Any) -> Scheduler:
    known = {"max_num_seqs": 3, "max_num_batched_tokens": 8, "max_model_len": 100, "look_back": 3}
    return Scheduler(SchedulerLimits(**{**known, **limits}))


def add(tested: Scheduler, request_id: int, length: int) -> None:
    ids = tuple(100 * (request_id + 1) + position for position in range(length))
    params = SamplingParams(max_tokens=10)
    tested.add(Request(request_id=request_id, prompt_ids=ids, params=params, seed=0, eos_token_id=1))


def planned(tested: Scheduler) -> StepPlan:
    plan = tested.plan()
    assert plan is not None
    return plan


def running(num_computed: int) -> Running:
    """A prompt 10 ... 15 and an answer 16, 17, on two of four pages."""
    table = PageTable(PagePool(4), block_size=4)
    table.append(8)
    request = Request(request_id=5, prompt_ids=range(10, 16), params=SamplingParams(), seed=0, eos_token_id=1)
    request.output_ids += (16, 17)
    return Running(request, 2, table, num_computed)


LIMITS = SchedulerLimits(max_num_seqs=3, max_num_batched_tokens=8, max_model_len=16, look_back=3)


@pytest.mark.parametrize(
    ("num_computed", "length", "ids", "history", "samples"),
    [
        (0, 4, (10, 11, 12, 13), (), False),
        (2, 5, (12, 13, 14, 15, 16), (10, 11), False),
        (5, 3, (15, 16, 17), (12, 13, 14), True),
        (7, 1, (17,), (14, 15, 16), True),
    ],
)
def test_a_span_has_the_known_tokens_and_those_before_and_samples_behind_the_newest(
    num_computed: int, length: int, ids: tuple[int, ...], history: tuple[int, ...], samples: bool
) -> None:
    span = planned_span(running(num_computed), length, (), 0, LIMITS)
    assert (span.request_id, span.slot, span.start, span.pages) == (5, 2, num_computed, (0, 1))
    assert (span.ids, span.history, span.samples, span.num_choices) == (ids, history, samples, int(samples))


def test_drafts_stand_behind_the_newest_token_and_each_row_chooses() -> None:
    span = planned_span(running(7), 1, (3, 4), 6, LIMITS)
    assert (span.ids, span.num_drafts, span.samples, span.num_choices) == ((17, 3, 4), 2, True, 3)
    assert (span.end, span.tail_start) == (10, 6)


# Steps behind this one.


def test_it_is_what_the_next_plan_of_a_long_prompt_computes() -> None:
    tested = scheduler()
    add(tested, 0, 19)
    plan = planned(tested)
    while not plan.spans[-1].samples:
        (foreseen,) = tested.upcoming(plan)
        tested.commit(plan, {})
        plan = planned(tested)
        (span,) = plan.spans
        assert (foreseen.start, foreseen.ids, foreseen.history) == (span.start, span.ids, span.history)
    assert tested.upcoming(plan) == []


def test_an_answer_has_no_known_token_behind_its_newest() -> None:
    tested = scheduler()
    add(tested, 0, 3)
    plan = planned(tested)
    tested.commit(plan, {0: SampledToken(token_id=7)})
    assert tested.upcoming(planned(tested)) == []


def test_several_prompts_are_foreseen_as_far_as_one_step_goes() -> None:
    tested = scheduler(max_num_batched_tokens=10)
    add(tested, 0, 12)
    add(tested, 1, 40)
    first = planned(tested)
    assert [(span.request_id, len(span.ids)) for span in first.spans] == [(0, 10)]
    assert [(span.request_id, len(span.ids)) for span in tested.upcoming(first)] == [(0, 2)]
    tested.commit(first, {})
    second = planned(tested)
    assert [(span.request_id, len(span.ids)) for span in second.spans] == [(0, 2), (1, 8)]
    assert [(span.request_id, span.start, len(span.ids)) for span in tested.upcoming(second)] == [(1, 8, 10)]
