"""Drafts as the scheduler sees them: rows, pages and positions, and what a stop cuts.  Integers only."""

from typing import Any

import pytest

from flash41.engine.events import SampledToken, Verified
from flash41.engine.limits import SchedulerLimits
from flash41.engine.plan import PlannedSpan, StepPlan
from flash41.engine.request import FinishReason, Request, SamplingParams
from flash41.engine.reuse import ReuseLimits
from flash41.engine.scheduler import Scheduler
from flash41.engine.stats import DraftCounters

EOS, WORD, PAGE = 1, 7, 8


def scheduler(*, num_pages: int = 32, num_images: int = 0, rows: int = 64, longest: int = 64) -> Scheduler:
    reuse = ReuseLimits(layout_id="layout", num_images=num_images, image_interval=100 * PAGE) if num_images else None
    return Scheduler(
        SchedulerLimits(
            max_num_seqs=4,
            max_num_batched_tokens=rows,
            max_model_len=longest,
            look_back=2,
            block_size=PAGE,
            num_pages=num_pages,
            reuse=reuse,
        )
    )


def request(number: int = 0, length: int = 3, **values: Any) -> Request:
    params = SamplingParams(**{"max_tokens": 40, **values})
    ids = range(100, 100 + length)
    return Request(request_id=number, prompt_ids=ids, params=params, seed=0, eos_token_id=EOS)


def started(tested: Scheduler, *asked: Request) -> None:
    """Reads the prompts and samples a first token each."""
    for one in asked:
        tested.add(one)
    plan = tested.plan()
    assert plan is not None
    tested.commit(plan, {one.request_id: SampledToken(token_id=WORD) for one in asked})


def offered(tested: Scheduler, *drafts: int) -> StepPlan:
    """The plan of a step in which everybody who may has these drafts."""
    for running in tested.undrafted():
        running.drafts = drafts[: tested.num_useful_drafts(running)]
    plan = tested.plan()
    assert plan is not None
    tested.check_integrity()
    return plan


def verified(*tokens: int, num_accepted: int | None = None) -> Verified:
    count = len(tokens) - 1 if num_accepted is None else num_accepted
    return Verified(tokens=tuple(SampledToken(token_id=token) for token in tokens), num_accepted=count)


def only(plan: StepPlan) -> PlannedSpan:
    (span,) = plan.spans
    return span


def test_a_span_is_the_anchor_and_its_drafts_and_every_row_chooses() -> None:
    tested, one = scheduler(), request()
    started(tested, one)
    span = only(offered(tested, 20, 21, 22))
    assert (span.start, span.ids, span.num_drafts, span.num_choices, span.samples) == (
        3,
        (WORD, 20, 21, 22),
        3,
        4,
        True,
    )
    assert span.history == (101, 102)


def test_accepted_drafts_are_computed_and_rejected_ones_are_planned_again() -> None:
    tested, one = scheduler(), request()
    started(tested, one)
    plan = offered(tested, 20, 21, 22)
    events = tested.commit(plan, {}, {0: verified(20, 21, 30)})
    assert [event.token.token_id for event in events if event.token] == [20, 21, 30]
    assert one.output_ids == [WORD, 20, 21, 30]
    span = only(offered(tested, 40))
    assert (span.start, span.ids) == (6, (30, 40))
    assert (one.num_draft_tokens, one.num_accepted_tokens) == (3, 2)


def test_a_page_for_drafts_alone_is_given_back() -> None:
    tested, one = scheduler(num_pages=32), request(length=6)
    started(tested, one)
    free = tested._pages.num_free
    plan = offered(tested, 20, 21, 22)  # positions 6 to 9, of which 8 and 9 are on a page of their own
    assert tested._pages.num_free == free - 1
    tested.commit(plan, {}, {0: verified(30)})
    tested.check_integrity()
    assert tested._pages.num_free == free
    assert tested._running[0].table.num_tokens == tested._running[0].num_computed == 7


def test_drafts_take_no_page_that_somebody_may_need() -> None:
    tested, one = scheduler(num_pages=2, longest=16), request(length=6)
    started(tested, one)
    assert tested._pages.num_free == 1
    assert only(offered(tested, 20, 21, 22)).num_drafts == 1  # position 7 is the last of the page


def test_answers_come_before_drafts_of_others() -> None:
    tested, asked = scheduler(rows=5), [request(number, 1) for number in range(3)]
    started(tested, *asked)
    plan = offered(tested, 20, 21, 22)
    assert [(span.request_id, span.num_drafts) for span in plan.spans] == [(0, 2), (1, 0), (2, 0)]
    assert plan.num_rows == 5


def test_drafts_that_found_no_row_wait_for_the_next_step() -> None:
    tested, asked = scheduler(rows=2), [request(number, 1) for number in range(2)]
    tested.add(asked[0])
    tested.add(asked[1])
    plan = tested.plan()
    assert plan is not None
    tested.commit(plan, {number: SampledToken(token_id=WORD) for number in range(2)})
    plan = offered(tested, 20, 21)
    assert [span.num_drafts for span in plan.spans] == [0, 0]


@pytest.mark.parametrize(("left", "expected"), [(1, 0), (2, 1), (3, 2), (9, 5)])
def test_no_draft_is_asked_for_behind_the_last_token(left: int, expected: int) -> None:
    for tested, one in (
        (scheduler(), request(max_tokens=1 + left)),
        (scheduler(longest=3 + 1 + left), request()),
    ):
        started(tested, one)
        plan = offered(tested, *range(20, 25))
        assert only(plan).num_drafts == expected
        assert bool(tested.undrafted()) is False


def test_what_lies_behind_a_stop_is_cut_everywhere() -> None:
    tested, one = scheduler(num_images=4), request(length=7, stop_token_ids=(21,))
    started(tested, one)
    plan = offered(tested, 20, 21, 22, 23)  # no image is lost: the page ends behind the anchor
    assert only(plan).num_drafts == 0
    tested.commit(plan, {0: SampledToken(token_id=9)})
    plan = offered(tested, 20, 21, 22, 23)
    events = tested.commit(plan, {}, {0: verified(20, 21, 22, 23, 24)})
    assert [event.finish_reason for event in events] == [None, FinishReason.STOP]
    assert one.output_ids == [WORD, 9, 20, 21]
    assert one.num_accepted_tokens == 2
    assert (tested.stats.num_block_tokens, tested.stats.accepted_tokens) == (2, (1, 1, 0, 0))
    assert tested.num_unfinished == 0
    tested.check_integrity()


def test_drafts_end_before_a_page_does_and_its_last_row_makes_an_image() -> None:
    tested, one = scheduler(num_images=4), request(length=3)
    started(tested, one)
    spans, saves = [], []
    token = 30
    while tested._running and tested._running[0].num_computed < 2 * PAGE:
        plan = offered(tested, *range(token + 1, token + 6))
        span = only(plan)
        spans.append((span.start, span.end))
        saves += [move.position for move in plan.saves]
        token += 6
        drafts = span.ids[1:]
        found = {0: verified(*drafts, token)} if drafts else {}
        tested.commit(plan, {} if drafts else {0: SampledToken(token_id=token)}, found)
        tested.check_integrity()
    assert spans == [(3, 7), (7, 8), (8, 14), (14, 15), (15, 16)]
    assert saves == [8, 16]
    cache = tested.reuse.cache
    assert cache is not None
    assert (cache.num_pages, cache.images.num_ready) == (2, 2)


def test_only_pages_of_committed_tokens_are_filed() -> None:
    tested, one = scheduler(num_images=4), request(length=3)
    started(tested, one)
    plan = offered(tested, 20, 21, 22)
    tested.commit(plan, {}, {0: verified(20, 30)})
    cache = tested.reuse.cache
    assert cache is not None
    assert cache.num_pages == 0
    running = tested._running[0]
    while running.num_computed < PAGE:
        tested.commit(offered(tested), {0: SampledToken(token_id=WORD)})
    (entry,) = cache._entries.values()
    assert entry.key.content.token_ids == (100, 101, 102, WORD, 20, 30, WORD, WORD)


def test_giving_way_drops_drafts() -> None:
    tested, one = scheduler(), request()
    started(tested, one)
    plan = offered(tested, 20, 21)
    tested.commit(plan, {}, {0: verified(20, 21, 22)})
    tested.undrafted()[0].drafts = (50,)
    tested._preempt(tested._running[0])
    span = only(offered(tested, 60))
    assert (span.start, span.num_drafts, span.ids) == (0, 0, (100, 101, 102, WORD, 20, 21, 22))


def test_a_request_that_is_aborted_while_its_drafts_run_gives_everything_back() -> None:
    tested, one = scheduler(), request()
    started(tested, one)
    plan = offered(tested, 20, 21)
    tested.abort(0)
    assert tested.commit(plan, {}, {0: verified(20, 21, 22)}) == []
    tested.check_integrity()
    assert tested._pages.num_free == tested._pages.num_pages


def test_counters_are_by_position() -> None:
    counters = DraftCounters()
    for drafts, accepted, tokens in ((5, 2, 3), (1, 1, 2), (3, 0, 1)):
        counters.count(drafts, accepted, tokens)
    assert (counters.num_blocks, counters.num_tokens) == (3, 6)
    assert (counters.drafted, counters.accepted) == ([3, 2, 2, 1, 1], [2, 1, 0, 0, 0])
