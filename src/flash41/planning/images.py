"""How many STATE images are kept beside the pool, and why.

    2 per slot and 8 more     the end of a prompt and the end of an answer for everybody, and some of those before
    within a budget           at most an eighth of what STATE leaves, or what the budget has left behind all pages;
                              never so many that the longest request gets shorter
    none                      without the prefix cache, and in profile demo, whose rows depend on how a prompt is cut

Without images no prefix is resumed, so nothing is kept at all.  Integers only.  spec: cache.md section 7.
"""

from dataclasses import dataclass

from flash41.cache.budget import state_floor
from flash41.cache.geometry import PoolGeometry
from flash41.cache.placement import placement
from flash41.config.run import RunWish

PER_SLOT = 2
BESIDES = 8
LARGEST_SHARE = 8
"""Images take at most this fraction of a budget behind STATE."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImagePlan:
    """Images of a run."""

    count: int
    """Images that are kept."""
    reason: str
    """Why that many."""


def image_plan(wish: RunWish, geometry: PoolGeometry, length: int, taken_bytes: int = 0) -> ImagePlan:
    """The images of a wish whose requests are `length` positions long; `taken_bytes` of a budget are used otherwise."""
    if not wish.prefix_cache:
        return ImagePlan(count=0, reason="the prefix cache is off, as asked")
    if wish.prefix_replay:
        return ImagePlan(count=0, reason="windows behind a cached prefix are computed again, by approximation")
    if wish.profile.stale_index_slots:
        return ImagePlan(count=0, reason="rows of profile demo depend on how a prompt is cut; no prefix is reused")
    wanted = PER_SLOT * wish.max_num_seqs + BESIDES
    size = f"{geometry.image_bytes:,} bytes of STATE each; "
    if wish.memory_bytes is None:
        return ImagePlan(count=wanted, reason=size + f"{PER_SLOT} per slot and {BESIDES} more")
    budget, slots = max(0, wish.memory_bytes - taken_bytes), wish.max_num_seqs
    share = (budget - state_floor(geometry, slots)) // LARGEST_SHARE
    behind_all = budget - placement(geometry, slots * geometry.pages_for(length), slots).total_bytes
    behind_one = budget - placement(geometry, geometry.pages_for(length), slots).total_bytes
    count = min(wanted, max(0, min(max(share, behind_all), behind_one)) // geometry.image_bytes)
    if count == wanted:
        return ImagePlan(count=count, reason=size + f"{PER_SLOT} per slot and {BESIDES} more")
    reason = size + f"what a budget of {budget:,} bytes leaves" + ("" if count else "; no prefix is reused")
    return ImagePlan(count=count, reason=reason)


def image_interval(wish: RunWish) -> int:
    """The distance of images in a long prompt: as asked, snapped down to whole pages, at least one."""
    return max(1, wish.state_image_interval // wish.block_size) * wish.block_size
