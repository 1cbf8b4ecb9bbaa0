"""Where prompts are cut, which images are made and why, and what a request begins with: integers only."""

from typing import Any

import pytest

from flash41.cache.images import ImageRole
from flash41.engine.events import SampledToken
from flash41.engine.limits import SchedulerLimits
from flash41.engine.plan import StepPlan
from flash41.engine.request import Request, SamplingParams
from flash41.engine.reuse import ReuseLimits
from flash41.engine.scheduler import Scheduler

EOS, WORD, PAGE = 1, 7, 4


def scheduler(num_pages: int = 32, num_images: int = 8, interval: int = 100, **values: int) -> Scheduler:
    sizes = {"max_num_seqs": 4, "max_num_batched_tokens": 64, "max_model_len": 64, "look_back": 2, **values}
    reuse = ReuseLimits(layout_id="layout", num_images=num_images, image_interval=interval * PAGE)
    return Scheduler(SchedulerLimits(**sizes, block_size=PAGE, num_pages=num_pages, reuse=reuse))


def request(request_id: int, length: int, **values: Any) -> Request:
    """Prompts of all requests begin alike."""
    params = SamplingParams(**{"max_tokens": 1, **values})
    return Request(request_id=request_id, prompt_ids=range(100, 100 + length), params=params, seed=0, eos_token_id=EOS)


def step(tested: Scheduler, token_id: int = WORD) -> StepPlan:
    plan = tested.plan()
    assert plan is not None
    tested.check_integrity()
    tested.commit(plan, {span.request_id: SampledToken(token_id=token_id) for span in plan.spans if span.samples})
    tested.check_integrity()
    return plan


def finish(tested: Scheduler, *asked: Request) -> list[StepPlan]:
    for one in asked:
        tested.add(one)
    plans = []
    while tested.num_unfinished:
        plans.append(step(tested))
    return plans


def spans(plans: list[StepPlan]) -> list[tuple[int, int]]:
    return [(span.start, span.end) for plan in plans for span in plan.spans]


def saved(plans: list[StepPlan]) -> list[int]:
    return [move.position for plan in plans for move in plan.saves]


def roles(tested: Scheduler) -> dict[int, ImageRole]:
    """Roles of all images by boundary, where all texts begin alike."""
    cache = tested.reuse.cache
    assert cache is not None
    return {
        cache._entries[image.page_hash].key.content.token_ids[-1] - 99: image.role
        for image in cache.images._filed.values()
    }


@pytest.mark.parametrize(
    ("length", "expected"),
    [(1, [1]), (4, [4]), (5, [4, 5]), (8, [4, 8]), (9, [8, 9]), (12, [8, 12]), (13, [12, 13])],
)
def test_a_prompt_is_cut_at_its_last_boundary_behind_which_a_token_is_left(length: int, expected: list[int]) -> None:
    plans = finish(scheduler(), request(0, length))
    assert [end for _, end in spans(plans)] == expected
    # Whatever ends at a boundary is kept, also the whole of a prompt that fills its pages.
    assert saved(plans) == [end for end in expected if end % PAGE == 0]


def test_a_long_prompt_has_rungs() -> None:
    tested = scheduler(interval=2)
    plans = finish(tested, request(0, 30))
    assert spans(plans) == [(0, 8), (8, 16), (16, 24), (24, 28), (28, 30)]
    assert roles(tested) == {
        8: ImageRole.RUNG,
        16: ImageRole.RUNG,
        24: ImageRole.RUNG,
        28: ImageRole.PROMPT,
    }


def test_the_row_budget_cuts_as_ever_and_what_it_cuts_by_chance_is_not_kept() -> None:
    plans = finish(scheduler(max_num_batched_tokens=8), request(0, 21))
    assert spans(plans) == [(0, 8), (8, 16), (16, 20), (20, 21)]
    assert saved(plans) == [20]


def test_an_answer_keeps_every_boundary_it_passes_and_the_last_as_its_end() -> None:
    tested = scheduler()
    plans = finish(tested, request(0, 5, max_tokens=9))
    assert saved(plans) == [4, 8, 12]
    assert [image.role for image in tested.reuse.cache.images._filed.values()] == [  # type: ignore[union-attr]
        ImageRole.PROMPT,
        ImageRole.RUNG,
        ImageRole.DECODE,
    ]


def test_without_room_for_an_image_nothing_is_saved_and_nobody_waits() -> None:
    tested = scheduler(num_images=1)
    plans = finish(tested, request(0, 5, max_tokens=9))
    assert saved(plans) == [4]
    assert tested.reuse.counters.images_dropped == 2


def test_a_second_request_begins_behind_pages_and_image_of_the_first() -> None:
    tested = scheduler()
    finish(tested, request(0, 9))
    second = request(1, 12)
    tested.add(second)
    plan = tested.plan()
    assert plan is not None
    (span,), (move,) = plan.spans, plan.restores
    assert (span.start, span.end, span.history) == (8, 12, (106, 107))
    assert (move.request_id, move.slot, move.position) == (1, span.slot, 8)
    assert span.pages[:2] == (0, 1)
    assert second.num_cached_tokens == 8
    tested.check_integrity()


def test_a_boundary_that_was_refused_for_want_of_an_image_gets_one() -> None:
    tested = scheduler()
    finish(tested, request(0, 21))
    other = Request(
        request_id=1,
        prompt_ids=(*range(100, 109), *range(200, 212)),
        params=SamplingParams(max_tokens=1),
        seed=0,
        eos_token_id=EOS,
    )
    plans = finish(tested, other)
    assert spans(plans) == [(0, 8), (8, 20), (20, 21)]
    assert saved(plans) == [8, 20]
    assert other.num_cached_tokens == 0


def test_a_prompt_is_not_cut_where_another_has_made_the_image_meanwhile() -> None:
    tested = scheduler(max_num_batched_tokens=10)
    plans = finish(tested, request(0, 9), request(1, 9))
    assert [[(span.request_id, span.start, span.end) for span in plan.spans] for plan in plans] == [
        [(0, 0, 8), (1, 0, 2)],
        [(0, 8, 9), (1, 2, 9)],
    ]
    assert saved(plans) == [8]


def test_a_prompt_that_ends_where_an_answer_ended_makes_the_image_a_prompts_end() -> None:
    tested = scheduler()
    finish(tested, request(0, 7, max_tokens=2))
    asked = Request(
        request_id=1,
        prompt_ids=(*range(100, 107), WORD, 300),
        params=SamplingParams(max_tokens=1),
        seed=0,
        eos_token_id=EOS,
    )
    finish(tested, asked)
    cache = tested.reuse.cache
    assert cache is not None
    assert asked.num_cached_tokens == 8
    assert sorted(image.role.value for image in cache.images._filed.values()) == ["prompt", "prompt"]


def test_cached_pages_go_before_anybody_gives_way() -> None:
    tested = scheduler(num_pages=6, max_model_len=24)
    finish(tested, request(0, 9))
    assert tested.stats.num_kept_pages == 2
    other = Request(
        request_id=1, prompt_ids=range(300, 320), params=SamplingParams(max_tokens=4), seed=0, eos_token_id=EOS
    )
    finish(tested, other)
    assert tested.num_preemptions == 0
    assert len(other.output_ids) == 4
    assert tested.stats.num_evicted_pages == 2


def test_admission_counts_what_the_cache_alone_holds_as_free_and_what_is_promised_as_taken() -> None:
    tested = scheduler(num_pages=6, max_model_len=24, max_num_batched_tokens=1)
    finish(tested, request(0, 9))
    for number, length in ((1, 13), (2, 13)):
        tested.add(
            Request(
                request_id=number,
                prompt_ids=range(1000 * number, 1000 * number + length),
                params=SamplingParams(max_tokens=1),
                seed=0,
                eos_token_id=EOS,
            )
        )
    step(tested)
    # Four pages for the first; two are left, of which the second needs four.
    assert [running.request.request_id for running in tested._running] == [1]


def test_a_request_that_finds_no_room_leaves_pages_and_image_as_they_were() -> None:
    tested = scheduler(num_pages=6, max_model_len=24)
    finish(tested, request(0, 9))
    cache = tested.reuse.cache
    assert cache is not None
    busy = tested._pages.take(4)
    tested.add(request(1, 20))
    assert tested.plan() is None
    cache.check_integrity()
    assert [image.num_pins for image in cache.images._filed.values()] == [0]
    tested._pages.give_back(busy)
    assert spans([step(tested)]) == [(8, 16)]


def test_an_abort_before_the_first_step_undoes_what_was_begun() -> None:
    tested = scheduler()
    finish(tested, request(0, 9))
    tested.add(request(1, 12))
    plan = tested.plan()
    assert plan is not None
    assert plan.restores
    assert plan.saves
    tested.abort(1)
    tested.check_integrity()
    tested.commit(plan, {1: SampledToken(token_id=WORD)})
    tested.check_integrity()
    cache = tested.reuse.cache
    assert cache is not None
    assert [image.num_pins for image in cache.images._filed.values()] == [0]
    assert tested.reuse.counters.lookups == 1
    assert cache.make_room(32)


def test_pages_that_two_requests_computed_are_kept_once_and_shared() -> None:
    tested = scheduler()
    first, second = request(0, 9, max_tokens=9), request(1, 9, max_tokens=9)
    for one in (first, second):
        tested.add(one)
    step(tested)
    step(tested)
    one, two = tested._running
    assert one.table.page_ids[:2] == two.table.page_ids[:2]
    assert one.table.page_ids[2] != two.table.page_ids[2]


def test_what_a_request_began_with_is_told_once_although_it_gives_way() -> None:
    tested = scheduler()
    finish(tested, request(0, 9))
    second = request(1, 13, max_tokens=9)
    tested.add(second)
    step(tested)
    step(tested)
    tested._preempt(tested._running[0])
    tested.check_integrity()
    plan = step(tested)
    assert plan.restores[0].position == 12
    assert second.num_cached_tokens == 8
    assert tested.stats.num_hits == 2
