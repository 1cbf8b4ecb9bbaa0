"""What replay plans: positions of windows, planes and tails, in integers."""

from typing import Any

import pytest

from flash41.engine.events import SampledToken
from flash41.engine.limits import SchedulerLimits
from flash41.engine.plan import PlannedSpan
from flash41.engine.replay import NO_REPLAY, Replay
from flash41.engine.request import Request, SamplingParams
from flash41.engine.reuse import ReuseLimits
from flash41.engine.scheduler import Scheduler

PAGE, WINDOW = 4, 3


def scheduler(*, num_pages: int = 16, rows: int = 64, **modes: bool) -> Scheduler:
    replay = Replay(window=WINDOW, **{"decoder": False, "prefix": False, **modes})
    limits = SchedulerLimits(
        max_num_seqs=2,
        max_num_batched_tokens=rows,
        max_model_len=32,
        look_back=2,
        block_size=PAGE,
        num_pages=num_pages,
        reuse=ReuseLimits(layout_id="layout", num_images=0 if replay.prefix else 4, image_interval=100 * PAGE),
        replay=replay,
    )
    return Scheduler(limits)


def finish(tested: Scheduler, length: int, number: int = 0, **values: Any) -> list[PlannedSpan]:
    params = SamplingParams(**{"max_tokens": 1, **values})
    tested.add(Request(request_id=number, prompt_ids=range(100, 100 + length), params=params, seed=0, eos_token_id=1))
    spans = []
    while tested.num_unfinished:
        plan = tested.plan()
        assert plan is not None
        tested.check_integrity()
        spans += plan.spans
        tested.commit(plan, {span.request_id: SampledToken(token_id=7) for span in plan.spans if span.samples})
        tested.check_integrity()
    return spans


def test_names_are_those_of_the_options() -> None:
    assert NO_REPLAY.names == ()
    assert Replay(window=1, decoder=True, prefix=True).names == ("decoder-replay", "prefix-replay")


@pytest.mark.parametrize(("length", "expected"), [(1, 0), (3, 0), (4, 1), (9, 6)])
def test_a_tail_is_the_last_window_of_the_prompt_and_stays_there(length: int, expected: int) -> None:
    spans = finish(scheduler(decoder=True), length, max_tokens=3)
    assert {span.tail_start for span in spans} == {expected}
    assert {span.tail_start for span in finish(scheduler(), length, max_tokens=3)} == {0}


def test_with_tails_the_boundary_kept_of_a_prompt_lies_before_its_own() -> None:
    tested = scheduler(decoder=True)
    assert [(span.start, span.end) for span in finish(tested, 10)] == [(0, 4), (4, 8), (8, 10)]
    # A retry may not resume at 8, whose windows of late layers would be those of another tail.
    assert [(span.start, span.end) for span in finish(tested, 10, 1)] == [(4, 10)]
    assert [(span.start, span.end) for span in finish(tested, 11, 2)] == [(8, 11)]


def test_a_hit_begins_one_window_earlier_and_writes_no_plane_before_its_end() -> None:
    tested = scheduler(prefix=True)
    assert [(span.start, span.window_start, span.planes_end) for span in finish(tested, 9)] == [(0, 0, 0)]
    spans = finish(tested, 10, 1, max_tokens=3)
    assert [(span.start, span.end, span.window_start, span.planes_end) for span in spans] == [
        (5, 10, 5, 8),
        (10, 11, 5, 8),
        (11, 12, 5, 8),
    ]
    assert spans[0].history == (103, 104)
    assert tested.stats.replayed_tokens == WINDOW
    assert tested.stats.approximate == ("prefix-replay",)


def test_a_replayed_window_may_be_cut_by_the_row_budget() -> None:
    tested = scheduler(prefix=True, rows=2)
    finish(tested, 9)
    spans = finish(tested, 10, 1)
    assert [(span.start, span.end, len(span.pages)) for span in spans] == [(5, 7, 2), (7, 9, 3), (9, 10, 3)]


def test_a_hit_no_longer_than_a_window_is_left() -> None:
    tested = scheduler(prefix=True)
    tested.reuse._replay = Replay(window=PAGE, decoder=False, prefix=True)
    finish(tested, 5)
    assert finish(tested, 6, 1)[0].start == 0


def test_no_images_are_made_where_prefixes_are_replayed() -> None:
    tested = scheduler(prefix=True)
    finish(tested, 9, max_tokens=9)
    cache = tested.reuse.cache
    assert cache is not None
    assert cache.images.num_slots == 0
    assert tested.reuse.counters.images_dropped == 0
