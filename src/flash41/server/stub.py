"""A service that plays a script: HTTP can be tested, and looked at, with no model.

    ScriptedService(codec, facts, lambda job: codec.tokenizer.encode("Hello</think>Hi"))

It speaks the same protocol as the engine: tokens one by one, watchers asked, lengths kept, failures told.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

from flash41.chat.conversation import ChatCodec
from flash41.engine.events import SampledToken
from flash41.engine.request import FinishReason, StopWatcher
from flash41.engine.stats import EngineStats
from flash41.server.service import (
    EngineStoppedError,
    GeneratedToken,
    Generation,
    GenerationError,
    Job,
    ModelFacts,
    ServiceStats,
)
from flash41.server.wishes import converted, watcher_of

Script = Callable[[Job], Sequence[int]]
"""Token ids of the answer to a job; EOS follows by itself."""
LOGPROB = -0.5
TUPLES = ("approximate", "drafted_tokens", "accepted_tokens")
"""Figures of an engine that are lists."""


class ScriptedService:
    """Plays `script` for every job; `breaks_at` fails each answer at that token, counted from 0."""

    def __init__(
        self,
        codec: ChatCodec,
        facts: ModelFacts,
        script: Script,
        *,
        token_seconds: float = 0.0,
        breaks_at: int | None = None,
        num_cached_tokens: int = 0,
    ) -> None:
        self._codec = codec
        self._facts = facts
        self._script = script
        self._token_seconds = token_seconds
        self._breaks_at = breaks_at
        self._num_cached_tokens = num_cached_tokens
        self._tasks: set[asyncio.Task[None]] = set()
        self.jobs: list[Job] = []
        """Everything that was submitted."""
        self.num_aborted = 0
        self.is_ready = True

    @property
    def facts(self) -> ModelFacts:
        """What is served."""
        return self._facts

    @property
    def codec(self) -> ChatCodec:
        """Renders conversations and reads answers."""
        return self._codec

    def stats(self) -> ServiceStats:
        """Figures of this moment."""
        none: dict[str, Any] = {field.name: () if field.name in TUPLES else 0 for field in fields(EngineStats)}
        engine = EngineStats(**none | {"num_running": len(self._tasks)})
        return ServiceStats(engine=engine, num_finished=len(self.jobs), taken=time.monotonic())

    def submit(self, job: Job) -> Generation:
        """Begins to play; raises EngineStoppedError when not ready."""
        if not self.is_ready:
            raise EngineStoppedError("the script has ended")
        self.jobs.append(job)

        def abort() -> None:
            self.num_aborted += 1
            task.cancel()

        generation = Generation(abort)
        task = asyncio.get_running_loop().create_task(self._play(job, generation))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return generation

    async def _play(self, job: Job, generation: Generation) -> None:
        conversation = None if job.conversation is None else converted(job.conversation, self._codec)
        watcher = watcher_of(job, conversation, self._codec, self._facts.eos_token_id)
        script = [*self._script(job), self._facts.eos_token_id]
        for index, token_id in enumerate(script, 1):
            await asyncio.sleep(self._token_seconds)
            if index - 1 == self._breaks_at:
                generation.fail(GenerationError("the script breaks here"))
                return
            reason = self._reason(job, watcher, index, token_id)
            token = GeneratedToken(
                token=self._sampled(job, token_id), finish_reason=reason, num_cached_tokens=self._num_cached_tokens
            )
            generation.deliver(token)
            if reason is not None:
                return

    def _reason(self, job: Job, watcher: StopWatcher | None, index: int, token_id: int) -> FinishReason | None:
        stopped = watcher is not None and watcher.push(token_id)
        if stopped or token_id == self._facts.eos_token_id:
            return FinishReason.STOP
        return FinishReason.LENGTH if index >= job.params.max_tokens else None

    def _sampled(self, job: Job, token_id: int) -> SampledToken:
        count = job.params.logprobs
        if count is None:
            return SampledToken(token_id=token_id)
        return SampledToken(token_id=token_id, logprob=LOGPROB, top_logprobs=((token_id, LOGPROB),) * min(count, 1))
