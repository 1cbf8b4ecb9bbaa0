"""From what a user wants to what will happen: sizes of the pool, each with its reason, before a weight is opened.

    pages = what all requests at once could fill, or what the budget holds after the STATE of every slot and the images
    a request is as long as asked, as the default, or as the pool when a budget leaves less

Integers only.  spec: cache.md section 2, config.md sections 4.4 and 4.8.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from flash41.cache.budget import split_budget
from flash41.cache.geometry import PoolGeometry, pool_geometry, row_bytes
from flash41.cache.geometry_rules import smallest_block_size
from flash41.cache.placement import Placement, placement
from flash41.config.architecture import ModelConfig
from flash41.config.run import Draft, DraftAccept, RunWish
from flash41.config.run_rules import check
from flash41.errors import CapacityError, complaint
from flash41.planning.images import image_interval, image_plan
from flash41.planning.pictures import PicturePlan, picture_plan

DEFAULT_MODEL_LEN = 8192
"""Positions of a request where nobody asks for more."""

DEFAULT_BLOCK_SIZE = 256
"""Tokens per page: keeps the page table of long contexts small (spec: cache.md section 2)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One number of a plan and why it is what it is."""

    name: str
    value: int
    reason: str

    def __str__(self) -> str:
        return f"{self.name} {self.value:,}: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """What will happen."""

    placement: Placement | None
    """The pool; None for a model without compressed rows, whose requests need no pages."""
    block_size: int
    """Tokens per page."""
    num_pages: int
    """Pages of the pool."""
    max_num_seqs: int
    """Requests in flight."""
    max_num_batched_tokens: int
    """Rows of one step."""
    max_model_len: int
    """Positions of one request."""
    num_images: int
    """STATE images beside the pool."""
    image_interval: int
    """Tokens between the images of a long prompt, whole pages."""
    prefix_cache: bool
    """Whether pages and images are kept for later requests."""
    decoder_replay: bool
    """Whether late layers read the end of a prompt only; approximate."""
    prefix_replay: bool
    """Whether windows behind a cached prefix are computed again; approximate."""
    draft: Draft
    """Whether DSpark drafts."""
    draft_accept: DraftAccept
    """Which drafts stay."""
    draft_tokens: int
    """Drafts per step, by which every ring is deeper; 0 without drafting."""
    pictures: PicturePlan
    """What is kept and encoded of pictures."""
    choices: tuple[Choice, ...]
    """Every derived number with its reason."""

    @property
    def total_bytes(self) -> int:
        """Bytes of pool, state images and rows of pictures."""
        if self.placement is None:
            return self.pictures.rows_bytes
        state_images = self.num_images * self.placement.geometry.image_bytes
        return self.placement.total_bytes + state_images + self.pictures.rows_bytes


def default_block_size(config: ModelConfig) -> int:
    """256 tokens, or the next number above it whose rows fill whole candidate blocks of every owner."""
    owners = config.attention.kv_source_layer_ids
    ratios = [config.attention.compress_ratios[owner] for owner in owners]
    # Without candidates a model may name no block at all.
    unit = smallest_block_size(max(1, config.indexer.candidate_block_size), ratios)
    return -(-DEFAULT_BLOCK_SIZE // unit) * unit


def resolve(wish: RunWish, config: ModelConfig) -> RunPlan:
    """The plan of a wish; raises ConfigError or CapacityError with everything that speaks against it."""
    check(wish, config)
    length = wish.max_model_len or min(DEFAULT_MODEL_LEN, config.max_positions)
    if not config.attention.kv_source_layer_ids:
        return _without_pages(wish, config, length)
    geometry = pool_geometry(config, wish.pool, block_size=wish.block_size, draft_tokens=draft_tokens(wish, config))
    wanted = wish.max_num_seqs * geometry.pages_for(length)
    places = placement(geometry, wanted, wish.max_num_seqs)
    pictures = picture_plan(wish, config)
    images = image_plan(wish, geometry, length, pictures.rows_bytes)
    beside = images.count * geometry.image_bytes + pictures.rows_bytes
    budget = None if wish.memory_bytes is None else max(0, wish.memory_bytes - beside)
    if budget is not None and places.total_bytes > budget:
        places = _within(budget, wish, geometry, beside)
    longest = min(length, places.num_pages * geometry.block_size)
    if wish.max_model_len is not None and longest < length:
        # A request that does not fit alone could never finish.
        expected = f"at most the {longest} tokens that a budget of {wish.memory_bytes} bytes holds"
        needed = placement(geometry, geometry.pages_for(length), wish.max_num_seqs).total_bytes + pictures.rows_bytes
        raise CapacityError(complaint("max_model_len", length, expected, f"{needed} bytes hold one such request"))
    choices = (
        Choice(name="slots", value=places.num_slots, reason=f"{geometry.state_bytes:,} bytes of STATE each"),
        Choice(name="pages", value=places.num_pages, reason=_why_pages(wish, places, wanted)),
        Choice(name="pool bytes", value=places.total_bytes, reason="pages and STATE in one allocation"),
        Choice(name="images", value=images.count, reason=images.reason),
        *_pictures(pictures),
        _longest(wish, config, longest),
        *_drafts(wish, config),
        *_replays(wish, config),
    )
    return _plan(wish, config, places, places.num_pages, longest, images.count, pictures, choices)


def draft_tokens(wish: RunWish, config: ModelConfig) -> int:
    """Drafts per step: the width of the model's draft block, which is part of the model; 0 without drafting."""
    return config.dspark.block_size if wish.drafts else 0


def window_slot_bytes(wish: RunWish, config: ModelConfig) -> int:
    """Bytes of one request's windows, which is all a model without compressed rows keeps."""
    _, row = row_bytes(wish.pool.main, config.attention.head_dim)
    tokens = draft_tokens(wish, config)
    num_layers = config.num_layers + (config.dspark.num_stages if tokens else 0)
    return num_layers * (config.attention.window + tokens) * row


def _within(budget: int, wish: RunWish, geometry: PoolGeometry, beside: int) -> Placement:
    """The largest pool of a budget, at least one page; `beside` are the bytes it has lost already."""
    num_slots = wish.max_num_seqs
    least = placement(geometry, 1, num_slots).total_bytes
    if budget < least:
        also = " and one picture" if wish.images else ""
        expected = f"at least {least + beside} for {num_slots} STATE entries and one page{also}"
        remedy = "fewer requests at once need less"
        raise CapacityError(complaint("cache budget in bytes", wish.memory_bytes, expected, remedy))
    return split_budget(geometry, budget, num_slots).placement


def _without_pages(wish: RunWish, config: ModelConfig, length: int) -> RunPlan:
    """The plan of a model whose layers have windows only: rings of every slot, and pages that cost nothing."""
    per_slot = window_slot_bytes(wish, config)
    pictures = picture_plan(wish, config)
    least = wish.max_num_seqs * per_slot + pictures.rows_bytes
    if wish.memory_bytes is not None and wish.memory_bytes < least:
        also = " and the rows of a picture" if pictures.rows_bytes else ""
        expected = f"at least {least} for the windows of {wish.max_num_seqs} requests{also}"
        raise CapacityError(complaint("cache budget in bytes", wish.memory_bytes, expected))
    choices = (
        Choice(name="slots", value=wish.max_num_seqs, reason=f"{per_slot:,} bytes of windows each, no pages"),
        *_pictures(pictures),
        _longest(wish, config, length),
        *_drafts(wish, config),
    )
    num_pages = wish.max_num_seqs * -(-length // wish.block_size)
    return _plan(wish, config, None, num_pages, length, 0, pictures, choices)


def _why_pages(wish: RunWish, places: Placement, wanted: int) -> str:
    sizes = f"{places.geometry.block_size} tokens and {places.geometry.page_bytes:,} bytes each; "
    if places.num_pages == wanted:
        return sizes + "enough for every request at full length"
    return sizes + f"what a budget of {wish.memory_bytes:,} bytes leaves"


def _longest(wish: RunWish, config: ModelConfig, length: int) -> Choice:
    if wish.max_model_len is not None:
        reason = "as asked"
    elif length == DEFAULT_MODEL_LEN:
        reason = "the default"
    else:
        reason = "where the model ends" if length == config.max_positions else "where the pool ends"
    return Choice(name="longest request", value=length, reason=reason)


def _pictures(pictures: PicturePlan) -> Iterator[Choice]:
    if pictures.num_rows:
        yield Choice(name="rows of pictures", value=pictures.num_rows, reason=pictures.reason)
        reason = "held while a picture is encoded, at most; beside the cache"
        yield Choice(name="image encoder bytes", value=pictures.encoder_bytes, reason=reason)


def _replays(wish: RunWish, config: ModelConfig) -> Iterator[Choice]:
    """The modes with which answers are approximate, so that nobody runs them unawares."""
    window = config.attention.window
    if wish.decoder_replay:
        first = max(config.attention.kv_source_layer_ids) + 1
        reason = f"APPROXIMATE: layers from {first} on read no more than these last tokens of a prompt"
        yield Choice(name="decoder replay", value=window, reason=reason)
    if wish.prefix_replay:
        reason = "APPROXIMATE: these last tokens of a cached prefix are computed again, without what is before them"
        yield Choice(name="prefix replay", value=window, reason=reason)


def _drafts(wish: RunWish, config: ModelConfig) -> Iterator[Choice]:
    if wish.drafts:
        window, tokens = config.attention.window, draft_tokens(wish, config)
        reason = f"{wish.draft.value}, as asked; rings of {window + tokens} rows take back what is not accepted"
        yield Choice(name="drafts per step", value=tokens, reason=reason)


def _plan(
    wish: RunWish,
    config: ModelConfig,
    places: Placement | None,
    num_pages: int,
    length: int,
    num_images: int,
    pictures: PicturePlan,
    choices: tuple[Choice, ...],
) -> RunPlan:
    return RunPlan(
        placement=places,
        block_size=wish.block_size,
        num_pages=num_pages,
        max_num_seqs=wish.max_num_seqs,
        max_num_batched_tokens=wish.max_num_batched_tokens,
        max_model_len=length,
        num_images=num_images,
        image_interval=image_interval(wish),
        prefix_cache=num_images > 0 or (wish.prefix_replay and places is not None),
        decoder_replay=wish.decoder_replay,
        prefix_replay=wish.prefix_replay and places is not None,
        draft=wish.draft,
        draft_accept=wish.draft_accept or DraftAccept.SHARED_NOISE,
        draft_tokens=draft_tokens(wish, config),
        pictures=pictures,
        choices=choices,
    )
