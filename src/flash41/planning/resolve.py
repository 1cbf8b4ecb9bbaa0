"""From what a user wants to what will happen: sizes of the pool, each with its reason, before a weight is opened.

    pages = what all requests at once could fill, or what the budget holds after the STATE of every slot
    a request is as long as asked, as the default, or as the pool when a budget leaves less

Integers only.  spec: cache.md section 2, config.md sections 4.4 and 4.8.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from flash41.cache.budget import split_budget
from flash41.cache.geometry import PoolGeometry, pool_geometry
from flash41.cache.geometry_rules import smallest_block_size
from flash41.cache.placement import Placement, placement
from flash41.config.architecture import ModelConfig
from flash41.config.run import RunWish
from flash41.config.run_rules import check
from flash41.errors import CapacityError, complaint

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
    choices: tuple[Choice, ...]
    """Every derived number with its reason."""


def default_block_size(config: ModelConfig) -> int:
    """256 tokens, or the next number above it whose rows fill whole candidate blocks of every owner."""
    owners = config.attention.kv_source_layer_ids
    ratios = [config.attention.compress_ratios[owner] for owner in owners]
    unit = smallest_block_size(config.indexer.candidate_block_size, ratios)
    return -(-DEFAULT_BLOCK_SIZE // unit) * unit


def resolve(wish: RunWish, config: ModelConfig) -> RunPlan:
    """The plan of a wish; raises ConfigError or CapacityError with everything that speaks against it."""
    check(wish, config)
    length = wish.max_model_len or min(DEFAULT_MODEL_LEN, config.max_positions)
    if not config.attention.kv_source_layer_ids:
        return _plan(wish, None, wish.max_num_seqs * -(-length // wish.block_size), length, ())
    geometry = pool_geometry(config, wish.pool, block_size=wish.block_size)
    wanted = wish.max_num_seqs * geometry.pages_for(length)
    places = placement(geometry, wanted, wish.max_num_seqs)
    if wish.memory_bytes is not None and places.total_bytes > wish.memory_bytes:
        places = split_budget(geometry, wish.memory_bytes, wish.max_num_seqs).placement
        length = _shortened(wish, geometry, places.num_pages, length)
    choices = tuple(_choices(wish, places, wanted, length))
    return _plan(wish, places, places.num_pages, length, choices)


def _shortened(wish: RunWish, geometry: PoolGeometry, num_pages: int, length: int) -> int:
    """The longest request a pool can hold alone: a request that does not fit could never finish."""
    capacity = num_pages * geometry.block_size
    if capacity >= length:
        return length
    floor = geometry.state_bytes * wish.max_num_seqs
    if capacity == 0:
        expected = f"at least {floor + geometry.page_bytes} for {wish.max_num_seqs} STATE entries and one page"
        raise CapacityError(complaint("cache budget in bytes", wish.memory_bytes, expected))
    if wish.max_model_len is not None:
        expected = f"at most the {capacity} tokens that a budget of {wish.memory_bytes} bytes holds"
        raise CapacityError(complaint("max_model_len", length, expected))
    return capacity


def _choices(wish: RunWish, places: Placement, wanted: int, length: int) -> Iterator[Choice]:
    geometry = places.geometry
    yield Choice(name="slots", value=places.num_slots, reason=f"{geometry.state_bytes:,} bytes of STATE each")
    why = f"{geometry.block_size} tokens and {geometry.page_bytes:,} bytes each; "
    enough = "enough for every request at full length"
    why += enough if places.num_pages == wanted else f"what a budget of {wish.memory_bytes:,} bytes leaves"
    yield Choice(name="pages", value=places.num_pages, reason=why)
    yield Choice(name="pool bytes", value=places.total_bytes, reason="pages and STATE in one allocation")
    asked = "as asked" if wish.max_model_len is not None else "the default, or less where the pool or the model ends"
    yield Choice(name="longest request", value=length, reason=asked)


def _plan(wish: RunWish, places: Placement | None, num_pages: int, length: int, choices: tuple[Choice, ...]) -> RunPlan:
    return RunPlan(
        placement=places,
        block_size=wish.block_size,
        num_pages=num_pages,
        max_num_seqs=wish.max_num_seqs,
        max_num_batched_tokens=wish.max_num_batched_tokens,
        max_model_len=length,
        choices=choices,
    )
