"""What a step tells of its requests: sampled tokens, verified drafts, ends.  Plain numbers only."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from flash41.engine.request import FinishReason


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledToken:
    """The next token of one request."""

    token_id: int
    logprob: float | None = None
    top_logprobs: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """What the rows of one request's drafts choose."""

    tokens: tuple[SampledToken, ...]
    """The accepted drafts and the token behind them, in order; at least one."""
    num_accepted: int
    """Drafts that are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenEvent:
    """One token of one request, or its end."""

    request_id: int
    token: SampledToken | None
    """None when the request ended without a new token (abort)."""
    finish_reason: FinishReason | None
    """Set on the last event of a request."""


NOTHING_VERIFIED: Mapping[int, Verified] = MappingProxyType({})
"""Of a step without drafts."""
