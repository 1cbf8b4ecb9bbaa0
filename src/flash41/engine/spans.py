"""The rows of one request that a step computes, and those that its successor will probably begin with.

    positions   0 ... start - look_back ... start ... start + length ... start + length + drafts
                      |--- history ----|---- ids of known tokens ----|------- drafts -------|

Integers only.
"""

from collections.abc import Iterable

from flash41.engine.limits import SchedulerLimits
from flash41.engine.plan import PlannedSpan, StepPlan
from flash41.engine.running import Running


def planned_span(
    running: Running, length: int, drafts: tuple[int, ...], tail_start: int, limits: SchedulerLimits
) -> PlannedSpan:
    """The next `length` known tokens of a request, and drafts behind them."""
    start = running.num_computed
    return PlannedSpan(
        request_id=running.request.request_id,
        slot=running.slot,
        start=start,
        ids=running.ids(start, start + length) + drafts,
        history=running.ids(max(0, start - limits.look_back), start),
        samples=length == running.num_missing,
        num_drafts=len(drafts),
        pages=running.table.page_ids,
        window_start=running.window_start,
        planes_end=running.planes_end,
        tail_start=tail_start,
        images=running.images(start - limits.look_back, start + length),
    )


def upcoming_spans(plan: StepPlan, everyone: Iterable[Running], limits: SchedulerLimits) -> list[PlannedSpan]:
    """Known tokens of running requests that steps behind a planned one will probably begin with, as far as a step goes.

    What reads ahead needs ids and history only; the other fields are those of a span that computes nothing.
    """
    ends = {span.request_id: span.end for span in plan.spans if not span.samples}
    budget, found = limits.max_num_batched_tokens, list[PlannedSpan]()
    for running in everyone:
        request_id = running.request.request_id
        start = ends.get(request_id, running.num_known)
        ids = running.ids(start, min(start + budget, running.num_known))
        if ids:
            budget -= len(ids)
            history = running.ids(max(0, start - limits.look_back), start)
            found.append(
                PlannedSpan(
                    request_id=request_id, slot=running.slot, start=start, ids=ids, history=history, samples=False
                )
            )
    return found
