"""What one step and one engine can hold.  Integers only."""

from dataclasses import dataclass

from flash41.engine.image_shelf import ShelfLimits
from flash41.engine.replay import NO_REPLAY, Replay
from flash41.engine.reuse import ReuseLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerLimits:
    """What one step and one engine can hold."""

    max_num_seqs: int
    """Requests in flight, one slot each."""
    max_num_batched_tokens: int
    """Rows of one step."""
    max_model_len: int
    """Positions of one request, prompt and answer together."""
    look_back: int
    """Token ids before a span that its n-grams reach."""
    block_size: int = 256
    """Tokens per page."""
    num_pages: int | None = None
    """Pages of the pool, at least those of one request; None is enough for all requests at full length."""
    reuse: ReuseLimits | None = None
    """What is kept for later requests; None keeps nothing."""
    replay: Replay = NO_REPLAY
    """What is computed again, or not at all, by approximation."""
    images: ShelfLimits | None = None
    """What is kept and encoded of pictures; None where the engine has no image encoder."""
