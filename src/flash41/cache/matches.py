"""What a look-up in the prefix cache finds, what a request takes of it, and the sums over all look-ups.

    wanted >= pre-gate >= counterfactual >= resumed        tokens of one prompt

Between the last two lies what was lost because an image was missing, between the middle two what no image could save.
spec: cache.md section 7, runtime.md section 2.
"""

from dataclasses import dataclass

from flash41.cache.images import Image
from flash41.cache.page_keys import PageKey


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixMatch:
    """What a look-up found; a view of the moment, to be acquired before anything is evicted."""

    keys: tuple[PageKey, ...]
    """Keys of the pages up to the image, none if there is no image."""
    page_ids: tuple[int, ...]
    """Those pages."""
    num_tokens: int
    """Where computing resumes: the boundary with the image, or 0."""
    pre_gate_tokens: int
    """Tokens of all matched pages, with or without an image behind them."""
    counterfactual_tokens: int
    """What `num_tokens` would be if every boundary of the image interval had an image."""
    wanted_tokens: int
    """Tokens of the prompt."""

    @property
    def demanded_boundary(self) -> int | None:
        """The boundary that was refused for want of an image: worth an image now.  None if nothing was refused."""
        return self.pre_gate_tokens if self.pre_gate_tokens > self.num_tokens else None


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixLease:
    """Pages and an image that a request begins with: the pages are its own references, the image is pinned."""

    match: PrefixMatch
    """What was found."""
    image: Image | None
    """Image to restore, None where computing begins at 0."""


@dataclass(slots=True, kw_only=True)
class PrefixCounters:
    """Sums since the start."""

    lookups: int = 0
    """Requests that began."""
    hits: int = 0
    """Of these, that resumed."""
    wanted_tokens: int = 0
    """Tokens of their prompts."""
    pre_gate_tokens: int = 0
    """Of these, in cached pages."""
    counterfactual_tokens: int = 0
    """Of these, resumable if every boundary had an image."""
    cached_tokens: int = 0
    """Of these, resumed."""
    lost_tokens: int = 0
    """Not resumed for want of an image at a boundary where one is made."""
    unrecoverable_tokens: int = 0
    """In cached pages, but behind the last boundary at which an image is made."""
    pages_evicted: int = 0
    """Pages that made room."""
    images_kept: int = 0
    """Images that became READY."""
    images_dropped: int = 0
    """Images refused because nothing could make room."""
    images_orphaned: int = 0
    """Images dropped with the page they were filed under."""

    def count(self, match: PrefixMatch) -> None:
        """Adds one look-up."""
        self.lookups += 1
        self.hits += match.num_tokens > 0
        self.wanted_tokens += match.wanted_tokens
        self.pre_gate_tokens += match.pre_gate_tokens
        self.counterfactual_tokens += match.counterfactual_tokens
        self.cached_tokens += match.num_tokens
        self.lost_tokens += match.counterfactual_tokens - match.num_tokens
        self.unrecoverable_tokens += match.pre_gate_tokens - match.counterfactual_tokens
