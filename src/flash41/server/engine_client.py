"""The service that computes in another process: orders go out over a socket, reports come in.

    event loop                                engine's process
    submit ──► [job] ───────────────────────► EngineLoop
    Generation.close ──► [abort] ───────────►   add, abort, step
    Generation.deliver ◄── [report] ◄────────   tokens of a step, in one piece

When the socket closes unasked, every open request fails, `is_ready` turns false and `on_death` is called: the HTTP
process is to end, and never to hang.
"""

import asyncio
import itertools
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from flash41.chat.conversation import ChatCodec
from flash41.server.message_values import figures_of, stats_of
from flash41.server.messages import (
    Abort,
    Lines,
    Ready,
    Report,
    Stop,
    Submit,
    order_line,
    read_report,
)
from flash41.server.service import (
    EngineStoppedError,
    Generation,
    GenerationError,
    Job,
    ModelFacts,
    ServiceStats,
)


class Worker(Protocol):
    """Whoever computes at the other end of the socket."""

    def wait(self, timeout_seconds: float) -> bool:
        """Whether it has ended, or does in time."""
        ...


class EngineClient:
    """A `Service` over a connection to an engine that is ready; used on one event loop."""

    def __init__(self, connection: socket.socket, ready: Ready, worker: Worker) -> None:
        self._connection = connection
        self._facts = ready.facts
        self._codec = ChatCodec.from_directory(Path(ready.directory), ready.image_token_id)
        self._figures: Sequence[Any] = figures_of(ready.stats)
        self._worker = worker
        self._job_ids = itertools.count()
        self._generations: dict[int, Generation] = {}
        self._link: asyncio.Transport | None = None
        self._is_leaving = False
        self._on_death: Callable[[], None] = lambda: None

    @property
    def facts(self) -> ModelFacts:
        """What is served."""
        return self._facts

    @property
    def codec(self) -> ChatCodec:
        """Renders conversations and reads answers."""
        return self._codec

    @property
    def is_alive(self) -> bool:
        """Whether the engine's process is there, and is to stay."""
        return self._link is not None and not self._is_leaving

    @property
    def is_ready(self) -> bool:
        """Whether a job would be computed: the engine is there and its last steps did not all fail."""
        return self.is_alive and self.stats().is_sound

    def stats(self) -> ServiceStats:
        """Figures of the last report."""
        return stats_of(self._figures)

    async def start(self, on_death: Callable[[], None]) -> None:
        """Begins to listen to the engine; `on_death` is told when it ends unasked."""
        self._on_death = on_death
        reports, loop = _Reports(self._take, self._lost), asyncio.get_running_loop()
        self._link, _ = await loop.create_unix_connection(lambda: reports, sock=self._connection)

    def submit(self, job: Job) -> Generation:
        """Queues a job; raises EngineStoppedError when the engine is gone."""
        if self._link is None or self._is_leaving:
            raise EngineStoppedError("the engine has stopped")
        job_id = next(self._job_ids)
        generation = Generation(lambda: self._abort(job_id))
        self._generations[job_id] = generation
        self._link.write(order_line(Submit(job_id, job)))
        return generation

    def give_up(self) -> None:
        """Ends every open answer at once, however long the current step takes; nothing can be submitted any more."""
        self._is_leaving = True
        self._fail_all(EngineStoppedError("the engine was stopped"))

    async def stop(self, timeout_seconds: float) -> bool:
        """Ends the engine behind its current step; whether it ended in time."""
        self.give_up()
        if self._link is not None:
            self._link.write(order_line(Stop()))
        return await asyncio.to_thread(self._worker.wait, timeout_seconds)

    def close(self) -> None:
        """Hangs up."""
        if self._link is not None:
            self._link.abort()

    def _abort(self, job_id: int) -> None:
        if self._generations.pop(job_id, None) is not None and self._link is not None:
            self._link.write(order_line(Abort(job_id)))

    def _take(self, report: Report) -> None:
        self._figures = report.figures
        for job_id, token in report.tokens:
            generation = self._generations.get(job_id)
            if generation is not None:  # else it was closed while the token was on its way
                generation.deliver(token)
                if token.finish_reason is not None:
                    del self._generations[job_id]
        for job_id, failure in report.failures:
            generation = self._generations.pop(job_id, None)
            if generation is not None:
                generation.fail(failure)

    def _lost(self) -> None:
        self._link = None
        if self._is_leaving:
            return
        self._is_leaving = True
        self._fail_all(GenerationError("the engine's process ended"))
        self._on_death()

    def _fail_all(self, failure: GenerationError) -> None:
        for generation in self._generations.values():
            generation.fail(failure)
        self._generations.clear()


class _Reports(asyncio.Protocol):
    """The reading end of a connection."""

    def __init__(self, take: Callable[[Report], None], lost: Callable[[], None]) -> None:
        self._lines = Lines()
        self._take = take
        self._lost = lost

    def data_received(self, data: bytes) -> None:
        for message in self._lines.feed(data):
            self._take(read_report(message))

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 -- asyncio's signature
        self._lost()
