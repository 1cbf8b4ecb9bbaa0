"""What the HTTP side needs of an engine, and nothing more: jobs in, tokens out, figures to show.

    job ──► Service.submit ──► Generation ──take()──► [GeneratedToken, ...]
                                   └──close()──► the engine forgets the job

`EngineClient` is the service that computes, in another process; `ScriptedService` plays a script, for tests without a
model.  So a job is plain data: what needs words in the engine is described, and made where it is used (`wishes`).
Everything here lives on the event loop that submits.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from flash41.chat import protocols
from flash41.chat.conversation import ChatCodec
from flash41.chat.image_plan import ImageSizes
from flash41.chat.images import Picture
from flash41.engine.events import SampledToken
from flash41.engine.request import FinishReason, SamplingParams
from flash41.engine.stats import EngineStats
from flash41.errors import Flash41Error

MOST_FAILURES = 3
"""Steps that fail one after the other before the engine counts as broken."""


class GenerationError(Flash41Error):
    """The engine could not finish a request; the message is for the log, not for the client."""


class GenerationTimeoutError(GenerationError):
    """A request took longer than it may."""


class EngineStoppedError(GenerationError):
    """The engine was told to stop, or is gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """What is served."""

    names: tuple[str, ...]
    """Names that requests may use; replies use the first."""
    max_model_len: int
    """Positions of one request, prompt and answer together."""
    max_num_seqs: int
    """Requests that are computed side by side."""
    vocab_size: int
    """Token ids are below this."""
    bos_token_id: int
    """Stands in front of raw prompts."""
    eos_token_id: int
    """Ends an answer."""
    image_token_id: int | None = None
    """Stands for a position of a picture in ids that are shown; None where pictures are not taken."""
    image_sizes: ImageSizes | None = None
    """What the model's configuration says about sizes of pictures; None where pictures are not taken."""
    choices: tuple[str, ...] = ()
    """What was decided at the start, with reasons."""
    approximate: tuple[str, ...] = ()
    """Options with which answers are approximate; told with every answer."""
    drafts: bool = False
    """Whether the engine drafts, so that every usage tells what came of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationWish:
    """A conversation whose stop strings or format the engine must know, as a body to be read again there."""

    protocol: protocols.Protocol
    body: Mapping[str, Any]
    """What the codec takes; JSON."""
    thinks_by_default: bool
    """Whether a body that says nothing about it reasons first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One answer to compute."""

    prompt_ids: tuple[int, ...]
    params: SamplingParams
    seed: int
    """The seed in effect: the asked one, or one that was drawn."""
    stop: tuple[str, ...] = ()
    """Strings that end a raw text; a conversation has its own."""
    conversation: ConversationWish | None = None
    """What the answer is held to and ended by, where a conversation asks for that."""
    salt: bytes = b""
    """Requests of different salts share no cached prefix."""
    pictures: tuple[Picture, ...] = ()
    """One for each placeholder among the ids."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratedToken:
    """One token of an answer."""

    token: SampledToken
    finish_reason: FinishReason | None
    """Set on the last token."""
    num_cached_tokens: int = 0
    """Tokens of the prompt that were not computed again."""
    num_draft_tokens: int = 0
    """Drafts verified for this answer up to the step that this token came with."""
    num_accepted_tokens: int = 0
    """Of these, tokens of the answer."""
    undrafted_because: str | None = None
    """Why this answer has no drafts although the engine drafts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceStats:
    """Figures of an engine at one moment; counters run from its start."""

    engine: EngineStats
    """What the engine holds and has reused."""
    num_steps: int = 0
    num_failed_steps: int = 0
    num_failing_steps: int = 0
    """Of these, the ones since a step was computed; many of them say that the engine is broken."""
    num_finished: int = 0
    """Answers that ended by themselves."""
    num_generated_tokens: int = 0
    step_seconds: float = 0.0
    """Time spent in steps."""
    taken: float = 0.0
    """When these figures were taken, `time.monotonic()`."""

    @property
    def is_sound(self) -> bool:
        """Whether a step may be expected to be computed."""
        return self.num_failing_steps < MOST_FAILURES

    @property
    def num_used_pages(self) -> int:
        """Pages that requests in flight hold."""
        return self.engine.num_pages - self.engine.num_free_pages - self.engine.num_kept_pages


class Generation:
    """The tokens of one job as they come."""

    def __init__(self, abort: Callable[[], None]) -> None:
        self._abort = abort
        self._pending: list[GeneratedToken] = []
        self._failure: Flash41Error | None = None
        self._reader: asyncio.Future[None] | None = None
        self._is_over = False

    @property
    def is_over(self) -> bool:
        """Whether the engine knows nothing of this job any more."""
        return self._is_over

    async def take(self) -> Sequence[GeneratedToken]:
        """All tokens that came since the last call, at least one; raises the failure that ended the job."""
        while not self._pending:
            if self._failure is not None:
                raise self._failure
            # A bare future: this happens once per token of every answer.
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        taken, self._pending = self._pending, []
        return taken

    def deliver(self, token: GeneratedToken) -> None:
        """Takes a token from the service."""
        self._is_over = self._is_over or token.finish_reason is not None
        self._pending.append(token)
        self._wake()

    def fail(self, failure: Flash41Error) -> None:
        """Takes the news that no token will follow; of a finished job that is nothing new."""
        if not self._is_over:
            self._is_over, self._failure = True, failure
            self._wake()

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    def expire(self, failure: Flash41Error) -> None:
        """Gives the job up and tells whoever waits for it; of a finished one there is nothing to give up."""
        if not self._is_over:
            self._abort()
            self.fail(failure)

    def close(self) -> None:
        """Gives the job up; of a finished one there is nothing to give up."""
        if not self._is_over:
            self._is_over = True
            self._abort()


class Service(Protocol):
    """An engine, seen from HTTP."""

    @property
    def facts(self) -> ModelFacts:
        """What is served."""
        ...

    @property
    def codec(self) -> ChatCodec:
        """Renders conversations and reads answers."""
        ...

    @property
    def is_ready(self) -> bool:
        """Whether a job would be computed."""
        ...

    def submit(self, job: Job) -> Generation:
        """Queues a job; raises EngineStoppedError when the engine is gone."""
        ...

    def stats(self) -> ServiceStats:
        """Figures of the last step."""
        ...
