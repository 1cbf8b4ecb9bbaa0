"""Decides which rows a step computes, and turns its tokens into events.

Running requests that only await their newest token go first, one row each; what is left of the row budget goes to
prompts, oldest request first, in chunks.  So a long prompt never starves a running answer.

A request is admitted, in order of arrival, when a slot is free and the free pages hold all its known tokens besides
what earlier ones still need.  It begins behind what is cached of it (`engine.reuse`); pages that only the cache holds
count as free.  When an answer needs a page and none is free, the request admitted last gives back its slot and pages
and is computed again later: its tokens stay, and since a row's bits depend on nothing else, its answer is the same.
Nobody takes pages from a request admitted before it: an answer without such a victim waits.

Integers only: the scheduler has never seen a tensor.
"""

from collections import deque
from collections.abc import Mapping

from flash41.cache.pages import PagePool, PageTable
from flash41.chat.images import Picture
from flash41.engine.events import NOTHING_VERIFIED, SampledToken, TokenEvent, Verified
from flash41.engine.image_shelf import ImageShelf
from flash41.engine.limits import SchedulerLimits
from flash41.engine.plan import PlannedEncoding, PlannedSpan, StepPlan
from flash41.engine.request import FinishReason, Request
from flash41.engine.reuse import PrefixReuse
from flash41.engine.running import Running
from flash41.engine.spans import planned_span, upcoming_spans
from flash41.engine.stats import DraftCounters, EngineStats
from flash41.errors import RequestError, complaint


class Scheduler:
    """Waiting and running requests of one engine."""

    def __init__(self, limits: SchedulerLimits) -> None:
        self.limits = limits
        self._waiting: deque[Request] = deque()
        self._running: list[Running] = []
        self._free_slots = list(range(limits.max_num_seqs - 1, -1, -1))
        longest = -(-limits.max_model_len // limits.block_size)
        self._pages = PagePool(limits.max_num_seqs * longest if limits.num_pages is None else limits.num_pages)
        assert self._pages.num_pages >= longest, f"{self._pages.num_pages} pages cannot hold one request of {longest}"
        self.reuse = PrefixReuse(limits.reuse, self._pages, limits.block_size, limits.replay)
        self.shelf = ImageShelf(limits.images)
        self.num_preemptions = 0
        self.drafts = DraftCounters()

    @property
    def num_unfinished(self) -> int:
        """Requests that still owe tokens."""
        return len(self._waiting) + len(self._running)

    @property
    def stats(self) -> EngineStats:
        """What is held and has been done."""
        counters = self.reuse.counters
        return EngineStats(
            num_running=len(self._running),
            num_waiting=len(self._waiting),
            num_preemptions=self.num_preemptions,
            num_pages=self._pages.num_pages,
            num_free_pages=self._pages.num_free,
            num_kept_pages=self.reuse.num_kept_pages,
            num_images=self.reuse.num_images,
            num_images_made=counters.images_kept,
            num_lookups=counters.lookups,
            num_hits=counters.hits,
            wanted_tokens=counters.wanted_tokens,
            cached_tokens=counters.cached_tokens,
            lost_tokens=counters.lost_tokens,
            replayed_tokens=self.reuse.num_replayed_tokens,
            approximate=self.limits.replay.names,
            num_evicted_pages=counters.pages_evicted,
            num_draft_blocks=self.drafts.num_blocks,
            num_block_tokens=self.drafts.num_tokens,
            drafted_tokens=tuple(self.drafts.drafted),
            accepted_tokens=tuple(self.drafts.accepted),
            num_pictures_encoded=self.shelf.num_encoded,
            num_pictures_found=self.shelf.num_found,
            num_picture_rows=self.shelf.num_rows,
        )

    def add(self, request: Request) -> None:
        """Queues a request; raises RequestError at once if it can never run."""
        self.check(request)
        self._waiting.append(request)

    def check(self, request: Request) -> None:
        """Raises RequestError if a request can never run, whatever else runs."""
        length = len(request.prompt_ids)
        if length == 0:
            raise RequestError(complaint("prompt", [], "at least one token"))
        if length >= self.limits.max_model_len:
            expected = f"fewer tokens than max_model_len {self.limits.max_model_len}"
            raise RequestError(complaint("prompt length", length, expected, "shorten it or raise max_model_len"))
        self.shelf.check(request)

    def abort(self, request_id: int) -> list[TokenEvent]:
        """Forgets a request wherever it is; an unknown or finished one is no error."""
        for request in self._waiting:
            if request.request_id == request_id:
                self._waiting.remove(request)
                return [self._finish(request, None, FinishReason.ABORT)]
        for running in self._running:
            if running.request.request_id == request_id:
                self._release(running)
                return [self._finish(running.request, None, FinishReason.ABORT)]
        return []

    def plan(self) -> StepPlan | None:
        """The next step, or None when nothing is left to do."""
        self._admit()
        while self._running:
            spans = self._spans()
            if spans:
                return self._step(spans)
            # Prompts hold all pages and none can go on: the newest one waits until the others are done.
            self._preempt(self._running[-1])
        return None

    def _step(self, spans: list[PlannedSpan]) -> StepPlan:
        by_id = {running.request.request_id: running for running in self._running}
        restores = [self.reuse.restore_of(by_id[span.request_id]) for span in spans]
        saves = [self.reuse.save_at(by_id[span.request_id], span.end) for span in spans if not span.num_drafts]
        encodings, forgets = self.shelf.take()
        return StepPlan(
            spans=tuple(spans),
            restores=tuple(move for move in restores if move is not None),
            saves=tuple(move for move in saves if move is not None),
            forgets=forgets,
            encodings=encodings,
        )

    def _admit(self) -> None:
        while self._waiting and self._free_slots:
            table = PageTable(self._pages, self.limits.block_size)
            newest = Running(self._waiting[0], self._free_slots[-1], table)
            if not self.reuse.begin(newest, sum(running.pages_missing for running in self._running)):
                return
            self._running.append(newest)
            self._waiting.popleft()
            self._free_slots.pop()

    def _spans(self) -> list[PlannedSpan]:
        budget = self.limits.max_num_batched_tokens
        num_answers = sum(running.num_missing == 1 for running in self._running)
        spans: list[PlannedSpan] = []
        for running in sorted(self._running, key=lambda item: item.num_missing > 1):
            num_answers -= 1  # those behind this one, below 0 once prompts have begun
            if budget == 0:
                break  # room is made by taking pages from others, which nobody may who has no row in this step
            if running not in self._running:
                continue  # gave its pages to an answer planned before it
            length = self.reuse.cut(running, min(running.num_missing, budget))
            length = min(length, self._room(running, length))
            length = self.shelf.reach(running.request, running.num_computed, length)
            if length > 0:
                drafts = self._drafts(running, budget - length - max(0, num_answers))
                running.table.append(running.growth(length + len(drafts)))
                spans.append(planned_span(running, length, drafts, self.reuse.tail_start(running.request), self.limits))
                budget -= length + len(drafts)
        return spans

    def _room(self, running: Running, length: int) -> int:
        """Tokens that a request's pages and the free ones hold, of which there should be enough for `length` more.

        Cached pages are evicted first; for an answer, pages of later requests are freed.  Answers are planned in order
        of admission and before all prompts, so a victim is never part of the step yet.
        """
        needed = running.table.pages_needed(running.growth(length))
        while self.reuse.make_room(needed) < needed and running.num_missing == 1:
            newest = self._running[-1]
            if newest is running:
                break
            self._preempt(newest)
        held = len(running.table.page_ids) + self._pages.num_free
        return held * self.limits.block_size - running.num_computed

    def _drafts(self, running: Running, num_rows: int) -> tuple[int, ...]:
        """Its drafts that find room: in rows the other answers leave, and in pages nobody else may need for theirs."""
        if not running.drafts:
            return ()
        here = running.table.pages_needed(running.growth(1))
        spare = max(0, self._pages.num_free - here - len(self._running))
        room = (len(running.table.page_ids) + here + spare) * self.limits.block_size - running.num_computed - 1
        count = max(0, min(len(running.drafts), num_rows, room))
        return running.drafts[: self.reuse.draftable(running.num_computed, count)]

    @property
    def running_ids(self) -> set[int]:
        """Requests with a slot."""
        return {running.request.request_id for running in self._running}

    def undrafted(self) -> list[Running]:
        """Answers that could take more than one token and that nobody has been asked to draft for yet."""
        return [running for running in self._running if running.drafts is None and self.num_useful_drafts(running)]

    def num_useful_drafts(self, running: Running) -> int:
        """Drafts of which all could be accepted before the answer is as long as it may be."""
        request = running.request
        left = min(request.params.max_tokens - len(request.output_ids), self.limits.max_model_len - running.num_known)
        return 0 if request.undrafted_because is not None else left - 1

    def _preempt(self, running: Running) -> None:
        """Takes slot and pages from a request and puts it first in line; what it has said stays said."""
        self._release(running)
        self._waiting.appendleft(running.request)
        self.num_preemptions += 1

    def commit(
        self, plan: StepPlan, tokens: Mapping[int, SampledToken], verified: Mapping[int, Verified] = NOTHING_VERIFIED
    ) -> list[TokenEvent]:
        """Books a step that ran: rows computed, tokens appended, finished requests released.

        `tokens` are those of requests without drafts in the plan, `verified` those of the others.  What lies behind a
        stop is cut: it becomes no token, and no row that it led to is kept.
        """
        self.shelf.commit(plan.encodings)
        by_id = {running.request.request_id: running for running in self._running}
        events = []
        for span in plan.spans:
            running = by_id.get(span.request_id)
            if running is None:
                continue  # aborted while the step ran
            if span.num_drafts:
                events += self._book(running, span, verified[span.request_id])
                continue
            running.num_computed += len(span.ids)
            self.reuse.book(running)  # before its end, which gives the pages back
            self.shelf.pass_by(running.request, running.num_computed)
            if span.samples:
                token = tokens[span.request_id]
                events.append(self._event(running, token, self._append(running, token)))
        return events

    def _book(self, running: Running, span: PlannedSpan, verified: Verified) -> list[TokenEvent]:
        """Books the rows of drafts: as many tokens as come before a stop, and the rows of those that were drafts."""
        reasons: list[FinishReason | None] = []
        for token in verified.tokens:
            reasons.append(self._append(running, token))
            if reasons[-1] is not None:
                break
        num_accepted = min(verified.num_accepted, len(reasons))
        running.keep(span.start + 1 + num_accepted)
        self.reuse.book(running)
        self.drafts.count(span.num_drafts, num_accepted, len(reasons))
        running.request.num_draft_tokens += span.num_drafts
        running.request.num_accepted_tokens += num_accepted
        return [self._event(running, token, reason) for token, reason in zip(verified.tokens, reasons, strict=False)]

    def upcoming(self, plan: StepPlan) -> list[PlannedSpan]:
        """Known tokens that steps behind this one will probably begin with, as far as a step goes."""
        return upcoming_spans(plan, self._running, self.limits)

    def requests(self, plan: StepPlan) -> list[Request]:
        """The requests whose rows choose a token in this plan, in the order of their rows."""
        by_id = {running.request.request_id: running.request for running in self._running}
        return [by_id[span.request_id] for span in plan.spans if span.samples]

    def picture(self, encoding: PlannedEncoding) -> Picture:
        """The picture that a planned encoding is about."""
        by_id = {running.request.request_id: running.request for running in self._running}
        return by_id[encoding.request_id].images[encoding.image_index].picture

    def _append(self, running: Running, token: SampledToken) -> FinishReason | None:
        """Puts a token behind the answer; why it is the last one, or None."""
        running.request.output_ids.append(token.token_id)
        running.drafts = None
        reason = running.request.finished_by(token.token_id)
        is_full = running.num_known >= self.limits.max_model_len
        return FinishReason.LENGTH if reason is None and is_full else reason

    def _event(self, running: Running, token: SampledToken, reason: FinishReason | None) -> TokenEvent:
        if reason is None:
            return TokenEvent(request_id=running.request.request_id, token=token, finish_reason=None)
        self._release(running)
        return self._finish(running.request, token, reason)

    def _finish(self, request: Request, token: SampledToken | None, reason: FinishReason) -> TokenEvent:
        request.finish_reason = reason
        return TokenEvent(request_id=request.request_id, token=token, finish_reason=reason)

    def _release(self, running: Running) -> None:
        self._running.remove(running)
        self._free_slots.append(running.slot)
        self.reuse.forget(running)
        self.shelf.leave(running.request)
        running.table.release()

    def check_integrity(self) -> None:
        """Free and used slots add up to all slots and no two requests share one; the same for pages."""
        used = [running.slot for running in self._running]
        total = self.limits.max_num_seqs
        assert sorted(used + self._free_slots) == list(range(total)), (used, self._free_slots, total)
        held = [page for running in self._running for page in running.table.page_ids]
        self._pages.check_integrity([*held, *self.reuse.check_integrity()])
        self.shelf.check_integrity(self.running_ids)
