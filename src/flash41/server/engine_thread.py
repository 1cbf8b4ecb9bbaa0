"""The service that computes: one thread owns the engine, the event loop only exchanges messages with it.

    event loop                     engine thread
    submit ──► inbox ────────────► take messages, add and abort requests
    abort  ──►                     step
    Generation.deliver ◄────────── tokens of the step, in one call to the loop

A step that fails fails the requests it computed, and the thread goes on.  When the thread itself fails, every open
request fails, `is_ready` turns false and `on_death` is called: the process is to end, and never to hang.
"""

import asyncio
import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from flash41.chat.conversation import ChatCodec
from flash41.engine.events import TokenEvent
from flash41.engine.llm import LLM
from flash41.engine.prompt_images import image_sizes
from flash41.engine.request import FinishReason, Request
from flash41.errors import Flash41Error, RequestError
from flash41.server.service import (
    EngineStoppedError,
    GeneratedToken,
    Generation,
    GenerationError,
    Job,
    ModelFacts,
    ServiceStats,
)

logger = logging.getLogger(__name__)

MOST_FAILURES = 3
"""Steps that fail one after the other before the engine counts as broken."""


@dataclass(slots=True, eq=False)
class _Open:
    """A job the thread works at."""

    job: Job
    generation: Generation
    request: Request | None = None


@dataclass(frozen=True, slots=True)
class _Abort:
    opened: _Open


@dataclass(frozen=True, slots=True)
class _Stop:
    pass


_News = tuple[_Open, GeneratedToken | Flash41Error]


class EngineThread:
    """Drives one `LLM`; made, started and used on one event loop."""

    def __init__(self, llm: LLM, names: Sequence[str], on_death: Callable[[], None] | None = None) -> None:
        self._llm = llm
        self._codec = llm.codec  # here rather than at the first request: it may refuse the tokenizer
        self._facts = _facts(llm, names)
        self._on_death = on_death
        self._inbox: queue.SimpleQueue[_Open | _Abort | _Stop] = queue.SimpleQueue()
        self._open: dict[int, _Open] = {}
        self._stats = ServiceStats(engine=llm.engine.stats, taken=time.monotonic())
        self._num_failures = 0
        self._is_alive = False
        self._generations: set[_Open] = set()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def facts(self) -> ModelFacts:
        """What is served."""
        return self._facts

    @property
    def codec(self) -> ChatCodec:
        """Renders conversations and reads answers."""
        return self._codec

    @property
    def is_ready(self) -> bool:
        """Whether a job would be computed: the thread runs and its last steps did not all fail."""
        return self._is_alive and self._num_failures < MOST_FAILURES

    @property
    def is_alive(self) -> bool:
        """Whether the thread runs."""
        return self._is_alive

    def start(self) -> None:
        """Starts the thread; tokens go to the event loop that is running now."""
        self._loop = asyncio.get_running_loop()
        self._is_alive = True
        self._thread.start()

    def stop(self, timeout_seconds: float) -> bool:
        """Ends the thread behind its current step; whether it ended in time."""
        self._inbox.put(_Stop())
        self._thread.join(timeout_seconds)
        return not self._thread.is_alive()

    def give_up(self) -> None:
        """Ends every open answer at once, however long the current step takes; nothing can be submitted any more."""
        self._die(EngineStoppedError("the engine was stopped"), is_death=False)

    def stats(self) -> ServiceStats:
        """Figures of the last step."""
        return self._stats

    def submit(self, job: Job) -> Generation:
        """Queues a job; raises EngineStoppedError when the thread is gone."""
        if not self._is_alive:
            raise EngineStoppedError("the engine has stopped")
        opened = _Open(job, Generation(lambda: self._inbox.put(_Abort(opened))))
        self._generations.add(opened)
        self._inbox.put(opened)
        return opened.generation

    # From here on, what runs in the thread.

    def _run(self) -> None:
        try:
            while self._exchange():
                self._step()
            failure: GenerationError = EngineStoppedError("the engine was stopped")
        except BaseException as error:
            logger.exception("the engine thread failed: %s", type(error).__name__)
            failure = GenerationError(f"the engine failed: {type(error).__name__}")
            self._to_loop(lambda: self._die(failure, is_death=True))
            return
        self._to_loop(lambda: self._die(failure, is_death=False))

    def _exchange(self) -> bool:
        """Takes all messages, waiting for one while nothing is to be computed; false when told to stop."""
        while True:
            try:
                message = self._inbox.get(block=not self._llm.engine.num_unfinished)
            except queue.Empty:
                return True
            if isinstance(message, _Stop):
                return False
            if isinstance(message, _Abort):
                self._forget(message.opened)
            else:
                self._admit(message)

    def _admit(self, opened: _Open) -> None:
        job = opened.job
        try:
            request = self._llm.request(
                job.prompt_ids,
                job.params,
                job.seed,
                job.watcher,
                cache_salt=job.salt,
                constraint=job.constraint,
                pictures=job.pictures,
            )
            self._llm.engine.add(request)
        except Flash41Error as error:
            self._send([(opened, error)])
            return
        opened.request = request
        self._open[request.request_id] = opened
        self._publish()

    def _forget(self, opened: _Open) -> None:
        if opened.request is not None:
            self._open.pop(opened.request.request_id, None)
            self._llm.engine.abort(opened.request.request_id)
        self._to_loop(lambda: self._generations.discard(opened))
        self._publish()

    def _step(self) -> None:
        if not self._llm.engine.num_unfinished:
            return
        started = time.perf_counter()
        try:
            events = self._llm.engine.step()
        except Exception as error:  # one broken step must not end the service
            # The message may hold text of a prompt.
            logger.error("a step failed: %s", type(error).__name__, exc_info=not isinstance(error, Flash41Error))
            self._num_failures += 1
            self._stats = replace(self._stats, num_failed_steps=self._stats.num_failed_steps + 1)
            self._send(self._lost(error))
        else:
            self._num_failures = 0
            self._book(events, time.perf_counter() - started)
            self._send(self._news(events))
        self._publish()

    def _news(self, events: Sequence[TokenEvent]) -> list[_News]:
        news: list[_News] = []
        for event in events:
            opened = self._open[event.request_id]
            if event.finish_reason is not None:
                del self._open[event.request_id]
            if event.token is not None:
                news.append((opened, _item(opened, event)))
        return news

    def _lost(self, error: Exception) -> list[_News]:
        """The requests that a failed step took with it."""
        failure = GenerationError(f"a step of the engine failed: {type(error).__name__}")
        ended = {
            request_id: opened
            for request_id, opened in self._open.items()
            if opened.request is not None and opened.request.finish_reason is FinishReason.ABORT
        }
        for request_id in ended:
            del self._open[request_id]
        return [(opened, failure) for opened in ended.values()]

    def _book(self, events: Sequence[TokenEvent], seconds: float) -> None:
        stats = self._stats
        self._stats = replace(
            stats,
            num_steps=stats.num_steps + 1,
            num_generated_tokens=stats.num_generated_tokens + sum(event.token is not None for event in events),
            num_finished=stats.num_finished + sum(event.finish_reason is not None for event in events),
            step_seconds=stats.step_seconds + seconds,
        )

    def _publish(self) -> None:
        self._stats = replace(self._stats, engine=self._llm.engine.stats, taken=time.monotonic())

    def _send(self, news: Sequence[_News]) -> None:
        if news:
            self._to_loop(lambda: self._deliver(news))

    def _to_loop(self, call: Callable[[], None]) -> None:
        assert self._loop is not None, "the thread runs only after start"
        with contextlib.suppress(RuntimeError):  # the loop was closed: nobody waits for anything any more
            self._loop.call_soon_threadsafe(call)

    # From here on, what runs on the event loop.

    def _deliver(self, news: Sequence[_News]) -> None:
        for opened, item in news:
            if isinstance(item, GeneratedToken):
                opened.generation.deliver(item)
            else:
                opened.generation.fail(item)
            if opened.generation.is_over:
                self._generations.discard(opened)

    def _die(self, failure: GenerationError, *, is_death: bool) -> None:
        self._is_alive = False
        for opened in self._generations:
            opened.generation.fail(failure)
        self._generations.clear()
        if is_death and self._on_death is not None:
            self._on_death()


def _item(opened: _Open, event: TokenEvent) -> GeneratedToken | Flash41Error:
    """A token, or what a constraint has to say about the answer that ends with it."""
    assert event.token is not None, event
    assert opened.request is not None, event
    if event.finish_reason is not None and opened.job.constraint is not None:
        try:
            opened.job.constraint.check()
        except RequestError as error:
            return error
    return GeneratedToken(
        token=event.token,
        finish_reason=event.finish_reason,
        num_cached_tokens=opened.request.num_cached_tokens or 0,
        num_draft_tokens=opened.request.num_draft_tokens,
        num_accepted_tokens=opened.request.num_accepted_tokens,
        undrafted_because=opened.request.undrafted_because,
    )


def _facts(llm: LLM, names: Sequence[str]) -> ModelFacts:
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
