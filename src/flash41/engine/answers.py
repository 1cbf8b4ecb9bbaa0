"""Answers: what a caller gets, and an answer in the making.

Knows nothing of words: the text of an answer is put in by whoever decodes it.
"""

import time
from dataclasses import dataclass, field

from flash41.chat.conversation import ToolCall
from flash41.engine.events import SampledToken, TokenEvent
from flash41.engine.request import FinishReason, Request


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """Wall-clock seconds of one answer, from the moment its request was queued."""

    first_token_seconds: float
    """Until the first token."""
    total_seconds: float
    """Until the last token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """One answer."""

    prompt_ids: tuple[int, ...]
    output_ids: tuple[int, ...]
    """Tokens of the answer, EOS included when it ended it."""
    text: str
    """The answer without EOS; in `LLM.chat`, what follows the reasoning."""
    reasoning: str | None
    """Text of the reasoning part, in `LLM.chat` with thinking."""
    tool_calls: tuple[ToolCall, ...]
    """Calls that an answer of `LLM.chat` made."""
    finish_reason: FinishReason
    seed: int
    """The seed in effect; giving it again gives the same answer."""
    logprobs: tuple[SampledToken, ...] | None
    """Per token, where the parameters ask for them."""
    timings: Timings
    num_cached_tokens: int
    """Tokens of the prompt that were not computed, because an earlier request had left them in the prefix cache."""
    num_draft_tokens: int
    """Drafts that were verified for this answer; 0 without drafting."""
    num_accepted_tokens: int
    """Tokens of the answer that were drafts."""
    undrafted_because: str | None
    """Why this answer was made without drafts although the engine drafts."""
    image_tokens: tuple[int, ...]
    """Positions of the prompt that each of its pictures takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamEvent:
    """One token of a streamed answer."""

    token: SampledToken
    finish_reason: FinishReason | None
    """Set on the last event."""


@dataclass(slots=True)
class Answer:
    """A queued request and what has come of it."""

    request: Request
    queued: float = field(default_factory=time.perf_counter)
    first: float | None = None
    last: float = 0.0
    tokens: list[SampledToken] = field(default_factory=list)

    @property
    def is_finished(self) -> bool:
        """Whether no token will follow."""
        return self.request.finish_reason is not None

    def take(self, event: TokenEvent) -> None:
        """Books an event of this request."""
        self.last = time.perf_counter()
        if event.token is not None:
            self.first = self.last if self.first is None else self.first
            self.tokens.append(event.token)

    def event(self, index: int) -> StreamEvent:
        """The token at `index` of those that came."""
        is_last = self.is_finished and index == len(self.tokens) - 1
        return StreamEvent(token=self.tokens[index], finish_reason=self.request.finish_reason if is_last else None)

    def completion(self, text: str, reasoning: str | None = None, tool_calls: tuple[ToolCall, ...] = ()) -> Completion:
        """A finished answer with its text."""
        request = self.request
        assert request.finish_reason is not None, request
        assert self.first is not None, request
        return Completion(
            prompt_ids=tuple(request.prompt_ids),
            output_ids=tuple(request.output_ids),
            text=text,
            reasoning=reasoning,
            tool_calls=tool_calls,
            finish_reason=request.finish_reason,
            seed=request.seed,
            logprobs=None if request.params.logprobs is None else tuple(self.tokens),
            timings=Timings(first_token_seconds=self.first - self.queued, total_seconds=self.last - self.queued),
            num_cached_tokens=request.num_cached_tokens or 0,
            num_draft_tokens=request.num_draft_tokens,
            num_accepted_tokens=request.num_accepted_tokens,
            undrafted_because=request.undrafted_because,
            image_tokens=tuple(image.planned.num_rows for image in request.images),
        )
