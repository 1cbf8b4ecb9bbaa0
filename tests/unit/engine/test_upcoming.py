"""Which tokens a step's successor will probably begin with."""

from typing import Any

from flash41.engine.events import SampledToken
from flash41.engine.limits import SchedulerLimits
from flash41.engine.plan import StepPlan
from flash41.engine.request import Request, SamplingParams
from flash41.engine.scheduler import Scheduler


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
