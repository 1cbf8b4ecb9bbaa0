"""What the engine's process does with one `LLM`: take orders, step, report; over and over until it is told to stop.

    inbox ──► take orders: add and abort requests
              step
    tell  ◄── tokens of the step, failures, figures: one report

A step that fails fails the requests it computed, and the loop goes on.  Knows nothing of processes: orders come in a
queue, reports go to whoever is given.
"""

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

from flash41.engine.events import TokenEvent
from flash41.engine.llm import LLM
from flash41.engine.prompt_images import image_sizes
from flash41.engine.request import FinishReason, Request, StopWatcher
from flash41.errors import Flash41Error, RequestError
from flash41.server.engine_orders import AnswerConstraint, Inbox, Prepared
from flash41.server.message_values import figures_of
from flash41.server.messages import Abort, Report, Stop, Submit
from flash41.server.service import GeneratedToken, GenerationError, Job, ModelFacts, ServiceStats
from flash41.server.wishes import converted, watcher_of

logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Open:
    """A job the loop works at."""

    job: Job
    constraint: AnswerConstraint | None = None
    request: Request | None = None


@dataclass(slots=True)
class _Counts:
    """The loop's own part of `ServiceStats`."""

    num_steps: int = 0
    num_failed_steps: int = 0
    num_failing_steps: int = 0
    num_finished: int = 0
    num_generated_tokens: int = 0
    step_seconds: float = 0.0


_COUNTS = tuple(field.name for field in fields(_Counts))


Tell = Callable[[Report], None]


class EngineLoop:
    """Drives one `LLM` on the thread that calls `run`."""

    def __init__(self, llm: LLM, inbox: Inbox, tell: Tell) -> None:
        self._llm = llm
        self._inbox = inbox
        self._tell = tell
        self._preparer = _Preparer(llm, inbox)
        self._open: dict[int, _Open] = {}
        self._job_of_request: dict[int, int] = {}
        self._failures: list[tuple[int, Flash41Error]] = []
        self._is_stale = False
        self._counts = _Counts()

    @property
    def stats(self) -> ServiceStats:
        """Figures of this moment."""
        counts = {name: getattr(self._counts, name) for name in _COUNTS}
        return ServiceStats(engine=self._llm.engine.stats, taken=time.monotonic(), **counts)

    def run(self) -> None:
        """Computes until told to stop."""
        while self._exchange():
            self._step()

    def _exchange(self) -> bool:
        """Takes all orders, waiting for one while nothing is to be computed; false when told to stop."""
        while True:
            try:
                order = self._inbox.get_nowait()
            except queue.Empty:
                if self._is_stale:
                    self._publish(())
                if self._llm.engine.num_unfinished:
                    return True
                order = self._inbox.get()
            if isinstance(order, Stop):
                return False
            self._is_stale = True
            if isinstance(order, Submit):
                self._begin(order.job_id, order.job)
            elif isinstance(order, Prepared):
                self._continue(order)
            else:
                self._forget(order)

    def _begin(self, job_id: int, job: Job) -> None:
        self._open[job_id] = _Open(job)
        if job.stop or job.conversation is not None:
            self._preparer.prepare(job_id, job)
        else:
            self._admit(job_id, None)

    def _continue(self, prepared: Prepared) -> None:
        opened = self._open.get(prepared.job_id)
        if opened is None:
            return  # aborted meanwhile
        if prepared.failure is not None:
            del self._open[prepared.job_id]
            self._failures.append((prepared.job_id, prepared.failure))
            return
        opened.constraint = prepared.constraint
        self._admit(prepared.job_id, prepared.watcher)

    def _admit(self, job_id: int, watcher: StopWatcher | None) -> None:
        opened = self._open[job_id]
        job, constraint = opened.job, opened.constraint
        try:
            request = self._llm.request(
                job.prompt_ids,
                job.params,
                job.seed,
                watcher,
                cache_salt=job.salt,
                constraint=constraint,
                pictures=job.pictures,
            )
            self._llm.engine.add(request)
        except Flash41Error as error:
            del self._open[job_id]
            self._failures.append((job_id, error))
            return
        opened.request = request
        self._job_of_request[request.request_id] = job_id

    def _forget(self, order: Abort) -> None:
        opened = self._open.pop(order.job_id, None)
        if opened is not None and opened.request is not None:
            del self._job_of_request[opened.request.request_id]
            self._llm.engine.abort(opened.request.request_id)

    def _step(self) -> None:
        started = time.perf_counter()
        try:
            events = self._llm.engine.step()
        except Exception as error:  # one broken step must not end the service
            # The message may hold text of a prompt.
            logger.error("a step failed: %s", type(error).__name__, exc_info=not isinstance(error, Flash41Error))
            self._lose(error)
            self._publish(())
            return
        tokens = self._taken(events)
        self._book(events, time.perf_counter() - started)
        self._publish(tokens)

    def _taken(self, events: Sequence[TokenEvent]) -> list[tuple[int, GeneratedToken]]:
        tokens = []
        for event in events:
            job_id = self._job_of_request[event.request_id]
            opened = self._open[job_id]
            if event.finish_reason is not None:
                del self._open[job_id], self._job_of_request[event.request_id]
            if event.token is None:
                continue
            try:
                tokens.append((job_id, _item(opened, event)))
            except RequestError as error:
                self._failures.append((job_id, error))
        return tokens

    def _lose(self, error: Exception) -> None:
        """Books a step that failed and the requests that it took with it."""
        failure = GenerationError(f"a step of the engine failed: {type(error).__name__}")
        for job_id, opened in list(self._open.items()):
            if opened.request is not None and opened.request.finish_reason is FinishReason.ABORT:
                del self._open[job_id], self._job_of_request[opened.request.request_id]
                self._failures.append((job_id, failure))
        self._counts.num_failed_steps += 1
        self._counts.num_failing_steps += 1

    def _book(self, events: Sequence[TokenEvent], seconds: float) -> None:
        counts = self._counts
        counts.num_steps += 1
        counts.num_failing_steps = 0
        counts.num_generated_tokens += sum(event.token is not None for event in events)
        counts.num_finished += sum(event.finish_reason is not None for event in events)
        counts.step_seconds += seconds

    def _publish(self, tokens: Sequence[tuple[int, GeneratedToken]]) -> None:
        failures, self._failures, self._is_stale = self._failures, [], False
        self._tell(Report(tokens=tokens, failures=failures, figures=figures_of(self.stats)))


class _Preparer:
    """Makes what jobs describe beside the loop: a grammar may take a second, which running answers need not wait."""

    def __init__(self, llm: LLM, inbox: Inbox) -> None:
        self._llm = llm
        self._inbox = inbox
        self._jobs: queue.SimpleQueue[tuple[int, Job]] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="preparer", daemon=True)

    def prepare(self, job_id: int, job: Job) -> None:
        """Puts `Prepared` into the inbox, later."""
        if not self._thread.is_alive():
            self._thread.start()
        self._jobs.put((job_id, job))

    def _run(self) -> None:
        while True:
            job_id, job = self._jobs.get()
            try:
                self._inbox.put(self._prepared(job_id, job))
            except Flash41Error as error:
                self._inbox.put(Prepared(job_id, failure=error))
            except Exception as error:  # whatever it is, nobody may wait for it without end
                logger.exception("a job could not be prepared: %s", type(error).__name__)
                failure = GenerationError(f"a job could not be prepared: {type(error).__name__}")
                self._inbox.put(Prepared(job_id, failure=failure))

    def _prepared(self, job_id: int, job: Job) -> Prepared:
        codec, eos = self._llm.codec, self._llm.config.tokens.eos
        if job.conversation is None:
            return Prepared(job_id, watcher_of(job, None, codec, eos))
        conversation = converted(job.conversation, codec)
        constraint = self._llm.answer_constraint(job.params, conversation)
        return Prepared(job_id, watcher_of(job, conversation, codec, eos), constraint)


def _item(opened: _Open, event: TokenEvent) -> GeneratedToken:
    """A token; raises what a constraint has to say about the answer that ends with it."""
    assert event.token is not None, event
    assert opened.request is not None, event
    if event.finish_reason is not None and opened.constraint is not None:
        opened.constraint.check()
    return GeneratedToken(
        token=event.token,
        finish_reason=event.finish_reason,
        num_cached_tokens=opened.request.num_cached_tokens or 0,
        num_draft_tokens=opened.request.num_draft_tokens,
        num_accepted_tokens=opened.request.num_accepted_tokens,
        undrafted_because=opened.request.undrafted_because,
    )


def model_facts(llm: LLM, names: Sequence[str]) -> ModelFacts:
    """What an engine serves."""
    takes_pictures = llm.engine.pictures is not None
    return ModelFacts(
        names=tuple(names),
        max_model_len=llm.plan.max_model_len,
        max_num_seqs=llm.plan.max_num_seqs,
        vocab_size=llm.config.vocab_size,
        bos_token_id=llm.config.tokens.bos,
        eos_token_id=llm.config.tokens.eos,
        image_token_id=llm.config.tokens.image if takes_pictures else None,
        image_sizes=image_sizes(llm.config.vision) if takes_pictures else None,
        choices=tuple(map(str, llm.plan.choices)),
        approximate=llm.engine.stats.approximate,
        drafts=llm.plan.draft_tokens > 0,
    )
