"""What an engine holds and has done, as numbers of one moment.

    pages     total = free + used + kept    used by running requests, kept for later ones by the cache alone
    tokens    wanted >= cached + lost       of all requests that began; what was cached was not computed

`cached` over `wanted` is the share of prompts that cost nothing.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    """Counts since the start, and what is there now."""

    num_running: int
    """Requests with a slot."""
    num_waiting: int
    """Requests without one."""
    num_preemptions: int
    """Times a request gave way."""
    num_pages: int
    """Pages of the pool."""
    num_free_pages: int
    """Pages that hold nothing."""
    num_kept_pages: int
    """Pages that only the prefix cache holds; they count as free when somebody needs them."""
    num_images: int
    """STATE images that could be resumed now."""
    num_images_made: int
    """STATE images made since the start."""
    num_lookups: int
    """Requests that began; again each time after they gave way."""
    num_hits: int
    """Of these, that began behind cached pages."""
    wanted_tokens: int
    """Known tokens of requests that began."""
    cached_tokens: int
    """Of these, not computed because they were cached."""
    lost_tokens: int
    """Of these, cached but computed again for want of an image at a boundary where one is made."""
    replayed_tokens: int
    """Of the cached ones, computed again by prefix replay."""
    approximate: tuple[str, ...]
    """Replay modes in effect, with which answers are approximate; empty for an exact engine."""
    num_evicted_pages: int
    """Cached pages that made room."""
