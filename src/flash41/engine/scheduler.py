"""Decides which rows a step computes, and turns its tokens into events.

Running requests that only await their newest token go first, one row each; what is left of the row budget goes to
prompts, oldest request first, in chunks.  So a long prompt never starves a running answer.  Requests are admitted in
order of arrival while slots are free.  Integers only: the scheduler has never seen a tensor.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from flash41.engine.plan import PlannedSpan, StepPlan
from flash41.engine.request import FinishReason, Request
from flash41.errors import RequestError, complaint


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerLimits:
    """What one step and one engine can hold."""

    max_num_seqs: int
    """Requests in flight, one slot each."""
    max_num_batched_tokens: int
    """Rows of one step."""
    max_model_len: int
    """Positions of one request, prompt and answer together."""
    look_back: int
    """Token ids before a span that its n-grams reach."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledToken:
    """The next token of one request."""

    token_id: int
    logprob: float | None = None
    top_logprobs: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenEvent:
    """One token of one request, or its end."""

    request_id: int
    token: SampledToken | None
    """None when the request ended without a new token (abort)."""
    finish_reason: FinishReason | None
    """Set on the last event of a request."""


@dataclass(slots=True)
class Running:
    """An admitted request: where its state lives and how much of it is computed."""

    request: Request
    slot: int
    num_computed: int = 0

    def ids(self, start: int, end: int) -> tuple[int, ...]:
        """Token ids at positions start .. end-1 of prompt and answer; nothing else of a long request is copied."""
        request, cut = self.request, len(self.request.prompt_ids)
        return (*request.prompt_ids[start:end], *request.output_ids[max(0, start - cut) : max(0, end - cut)])

    @property
    def num_known(self) -> int:
        """Token ids of prompt and answer so far."""
        return len(self.request.prompt_ids) + len(self.request.output_ids)

    @property
    def num_missing(self) -> int:
        """Known ids whose rows are not computed yet; 1 for a request that awaits its next token."""
        return self.num_known - self.num_computed


class Scheduler:
    """Waiting and running requests of one engine."""

    def __init__(self, limits: SchedulerLimits) -> None:
        self.limits = limits
        self._waiting: deque[Request] = deque()
        self._running: list[Running] = []
        self._free_slots = list(range(limits.max_num_seqs - 1, -1, -1))

    @property
    def num_unfinished(self) -> int:
        """Requests that still owe tokens."""
        return len(self._waiting) + len(self._running)

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
        while self._waiting and self._free_slots:
            self._running.append(Running(self._waiting.popleft(), self._free_slots.pop()))
        budget = self.limits.max_num_batched_tokens
        spans = []
        for running in sorted(self._running, key=lambda item: item.num_missing > 1):
            length = min(running.num_missing, budget)
            if length:
                spans.append(self._span(running, length))
                budget -= length
        return StepPlan(spans=tuple(spans)) if spans else None

    def _span(self, running: Running, length: int) -> PlannedSpan:
        start = running.num_computed
        return PlannedSpan(
            request_id=running.request.request_id,
            slot=running.slot,
            start=start,
            ids=running.ids(start, start + length),
            history=running.ids(max(0, start - self.limits.look_back), start),
            samples=length == running.num_missing,
        )

    def commit(self, plan: StepPlan, tokens: Mapping[int, SampledToken]) -> list[TokenEvent]:
        """Books a step that ran: rows computed, tokens appended, finished requests released."""
        by_id = {running.request.request_id: running for running in self._running}
        events = []
        for span in plan.spans:
            running = by_id.get(span.request_id)
            if running is None:
                continue  # aborted while the step ran
            running.num_computed += len(span.ids)
            if span.samples:
                events.append(self._append(running, tokens[span.request_id]))
        return events

    def requests(self, plan: StepPlan) -> list[Request]:
        """The requests whose rows choose a token in this plan, in the order of their rows."""
        by_id = {running.request.request_id: running.request for running in self._running}
        return [by_id[span.request_id] for span in plan.spans if span.samples]

    def _append(self, running: Running, token: SampledToken) -> TokenEvent:
        request = running.request
        request.output_ids.append(token.token_id)
        reason = request.finished_by(token.token_id)
        if reason is None and running.num_known >= self.limits.max_model_len:
            reason = FinishReason.LENGTH
        if reason is None:
            return TokenEvent(request_id=request.request_id, token=token, finish_reason=None)
        self._release(running)
        return self._finish(request, token, reason)

    def _finish(self, request: Request, token: SampledToken | None, reason: FinishReason) -> TokenEvent:
        request.finish_reason = reason
        return TokenEvent(request_id=request.request_id, token=token, finish_reason=reason)

    def _release(self, running: Running) -> None:
        self._running.remove(running)
        self._free_slots.append(running.slot)

    def check_integrity(self) -> None:
        """Free and used slots add up to all slots, and no two requests share one."""
        used = [running.slot for running in self._running]
        total = self.limits.max_num_seqs
        assert sorted(used + self._free_slots) == list(range(total)), (used, self._free_slots, total)
