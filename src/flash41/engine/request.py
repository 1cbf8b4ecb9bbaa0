"""One request: what was asked, how to choose tokens, and what has come of it.

The engine speaks ids.  What needs words comes in through two protocols made by whoever knows words: a `StopWatcher`
that sees every token and says when to stop, and a `Constraint` that says which tokens may come next.
"""

import enum
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from flash41.cache.page_keys import PageKey
from flash41.engine.prompt_images import PromptImage
from flash41.errors import RequestError, combined, complaint

SEED_LIMIT = 2**63


class FinishReason(enum.Enum):
    """Why a request ended."""

    STOP = "stop"
    """EOS, a stop token, or a stop watcher."""
    LENGTH = "length"
    """The asked number of tokens, or the longest request the engine holds."""
    ABORT = "abort"
    """The caller gave up."""


class StopWatcher(Protocol):
    """Sees the tokens of one answer in order."""

    def push(self, token_id: int) -> bool:
        """Takes the next token; true ends the answer with it."""
        ...


class Constraint(Protocol):
    """Restricts the tokens of one answer, for example to a grammar."""

    def allowed(self) -> NDArray[np.bool_]:
        """Bool [vocab]: tokens that may come next; the caller may not keep it."""
        ...

    def push(self, token_id: int) -> None:
        """Takes the token that was chosen."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How tokens are chosen.  Raises RequestError listing every value out of range.

    SamplingParams(temperature=0)                      greedy, ties to the lowest id
    SamplingParams(temperature=0.7, top_p=0.9, seed=1) the same text every time, in any batch
    """

    max_tokens: int = 256
    """Tokens of the answer at most."""
    temperature: float = 1.0
    """Divides the logits, 0 to 2; 0 takes the largest."""
    top_p: float = 1.0
    """Keeps the likeliest tokens that reach this mass, above 0 to 1."""
    top_k: int | None = None
    """Keeps this many of the likeliest tokens."""
    min_p: float = 0.0
    """Keeps tokens at least this fraction as likely as the likeliest, 0 to 1."""
    repetition_penalty: float = 1.0
    """Divides positive and multiplies negative logits of tokens seen in prompt or answer, above 0 to 2."""
    presence_penalty: float = 0.0
    """Subtracted once from the logits of tokens in the answer, -2 to 2."""
    frequency_penalty: float = 0.0
    """Subtracted per occurrence from the logits of tokens in the answer, -2 to 2."""
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    """Added to the logits of single tokens, -100 to 100."""
    seed: int | None = None
    """Keys the noise; without one the caller draws and reports one."""
    stop_token_ids: tuple[int, ...] = ()
    """Tokens that end the answer besides EOS."""
    ignore_eos: bool = False
    """Whether EOS is a token like any other."""
    logprobs: int | None = None
    """Alternatives reported per token, 0 to 20; None reports nothing."""

    def __post_init__(self) -> None:
        faults = [fault for fault in self._faults() if fault]
        if faults:
            heading = None if len(faults) == 1 else f"sampling parameters: {len(faults)} faults"
            raise RequestError(combined(faults, heading))

    def _faults(self) -> list[str | None]:
        return [
            _number("temperature", self.temperature, 0, 2),
            _number("top_p", self.top_p, 0, 1, above=True),
            _number("min_p", self.min_p, 0, 1),
            _number("repetition_penalty", self.repetition_penalty, 0, 2, above=True),
            _number("presence_penalty", self.presence_penalty, -2, 2),
            _number("frequency_penalty", self.frequency_penalty, -2, 2),
            _integer("max_tokens", self.max_tokens, 1),
            None if self.top_k is None else _integer("top_k", self.top_k, 1),
            None if self.seed is None else _integer("seed", self.seed, 0, SEED_LIMIT - 1),
            None if self.logprobs is None else _integer("logprobs", self.logprobs, 0, 20),
            *self._token_faults(),
        ]

    def _token_faults(self) -> list[str | None]:
        stop: object = self.stop_token_ids
        bias: object = self.logit_bias
        faults: list[str | None] = []
        if isinstance(stop, (list, tuple)):
            faults += [_integer("stop_token_ids", token_id, 0) for token_id in stop]
        else:
            faults.append(complaint("stop_token_ids", stop, "a list or tuple of token ids"))
        if isinstance(bias, Mapping):
            faults += [_integer("logit_bias token", token_id, 0) for token_id in bias]
            faults += [_number(f"logit_bias[{token_id}]", value, -100, 100) for token_id, value in bias.items()]
        else:
            faults.append(complaint("logit_bias", bias, "a mapping of token ids to numbers from -100 to 100"))
        return faults


def _number(name: str, value: object, low: float, high: float, above: bool = False) -> str | None:
    expected = f"a number {'above' if above else 'from'} {low} to {high}"
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return complaint(name, value, expected)
    inside = (low < value if above else low <= value) and value <= high
    return None if inside else complaint(name, value, expected)


def _integer(name: str, value: object, low: int, high: int | None = None) -> str | None:
    expected = f"an integer of at least {low}" if high is None else f"an integer from {low} to {high}"
    if isinstance(value, bool) or not isinstance(value, int) or value < low or (high is not None and value > high):
        return complaint(name, value, expected)
    return None


@dataclass(slots=True, kw_only=True)
class Request:
    """A request on its way through the engine."""

    request_id: int
    """Unique among the engine's requests."""
    prompt_ids: Sequence[int]
    """Token ids of the prompt, BOS included."""
    params: SamplingParams
    """How tokens are chosen."""
    seed: int
    """The seed in effect: the asked one, or the one drawn for this request."""
    eos_token_id: int
    """Ends the answer unless ignored."""
    stop_watcher: StopWatcher | None = None
    constraint: Constraint | None = None
    images: tuple[PromptImage, ...] = ()
    """Pictures of the prompt, in order; their positions are part of `prompt_ids`."""
    output_ids: list[int] = field(default_factory=list)
    """Tokens of the answer so far, EOS included when it ended it."""
    finish_reason: FinishReason | None = None
    cache_salt: bytes = b""
    """Enters the first key of the prefix cache: only requests with equal salts share pages."""
    page_keys: tuple[PageKey, ...] = ()
    """Names of the pages that its ids fill, as far as the prefix cache has asked for them."""
    num_cached_tokens: int | None = None
    """Tokens that were not computed when the request first began, because they were cached; None before."""
    undrafted_because: str | None = None
    """Why this request runs without drafts although the engine drafts; None where it may have them."""
    num_draft_tokens: int = 0
    """Drafts that were verified for it."""
    num_accepted_tokens: int = 0
    """Those of them that are tokens of the answer."""

    @property
    def num_known(self) -> int:
        """Token ids of prompt and answer so far."""
        return len(self.prompt_ids) + len(self.output_ids)

    def ends_with(self, token_id: int) -> bool:
        """Whether a token ends the answer wherever it stands: EOS unless ignored, or a stop token."""
        params = self.params
        return (token_id == self.eos_token_id and not params.ignore_eos) or token_id in params.stop_token_ids

    def finished_by(self, token_id: int) -> FinishReason | None:
        """Why the request ends with this token, which is in `output_ids` already; None if it goes on."""
        params = self.params
        stopped = self.stop_watcher is not None and self.stop_watcher.push(token_id)
        if self.ends_with(token_id) or stopped:
            return FinishReason.STOP
        return FinishReason.LENGTH if len(self.output_ids) >= params.max_tokens else None
