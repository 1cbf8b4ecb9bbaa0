"""What an engine holds and has done, as numbers of one moment.

    pages     total = free + used + kept    used by running requests, kept for later ones by the cache alone
    tokens    wanted >= cached + lost       of all requests that began; what was cached was not computed

`cached` over `wanted` is the share of prompts that cost nothing.
"""

from dataclasses import dataclass, field


@dataclass(slots=True)
class DraftCounters:
    """What has come of drafts; sums since the start."""

    num_blocks: int = 0
    """Verifications of one request's drafts."""
    num_tokens: int = 0
    """Tokens that came of them, accepted drafts and one more each."""
    drafted: list[int] = field(default_factory=list)
    """By position behind the anchor: drafts verified."""
    accepted: list[int] = field(default_factory=list)
    """By position: those that are tokens of an answer."""

    def count(self, num_drafts: int, num_accepted: int, num_tokens: int) -> None:
        """Books one verification."""
        self.num_blocks += 1
        self.num_tokens += num_tokens
        for counts, number in ((self.drafted, num_drafts), (self.accepted, num_accepted)):
            counts += [0] * (num_drafts - len(counts))
            for position in range(number):
                counts[position] += 1


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
    num_draft_blocks: int
    """Verifications of one request's drafts."""
    num_block_tokens: int
    """Tokens that came of them; over the blocks, the tokens a request gains per step."""
    drafted_tokens: tuple[int, ...]
    """Drafts verified, by position behind the token they follow."""
    accepted_tokens: tuple[int, ...]
    """Those of them that are tokens of an answer."""
    num_pictures_encoded: int
    """Pictures that the image encoder was shown."""
    num_pictures_found: int
    """Times a request came to a picture whose rows were there or on their way."""
    num_picture_rows: int
    """Rows of pictures that are kept now."""
