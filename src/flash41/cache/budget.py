"""How a cache budget is divided: STATE for every request first, pages with the rest.

    floor = slots * STATE        pages = (budget - floor) // PAGE, less what the zones' alignment costs

40 GiB, 128 requests with DSpark: floor 0.712 GiB, 57,019 pages = 14,596,864 tokens.  Capacity is always told as
A + B * tokens, STATE and PAGE apart: one number per token would change with the length of the requests.
spec: cache.md section 2, config.md section 4.8 rule G8.
"""

from dataclasses import dataclass

from flash41.cache.geometry import PoolGeometry
from flash41.cache.placement import Placement, placement
from flash41.errors import CapacityError


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMemory:
    """Where a budget comes from: fraction * total - held."""

    total_bytes: int
    """Memory of the device."""
    held_bytes: int
    """Bytes that weights, activations and other processes hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetSplit:
    """What a budget pays for."""

    placement: Placement
    """The zones; their pages and slots are the answer."""
    floor_bytes: int
    """Bytes of all STATE entries."""

    @property
    def num_pages(self) -> int:
        """Pages."""
        return self.placement.num_pages

    @property
    def num_tokens(self) -> int:
        """Tokens that all pages hold."""
        return self.placement.num_pages * self.placement.geometry.block_size


def state_floor(geometry: PoolGeometry, num_slots: int) -> int:
    """Bytes of the STATE entries of `num_slots` requests."""
    return num_slots * geometry.state_bytes


def split_budget(
    geometry: PoolGeometry, budget_bytes: int, num_slots: int, memory: DeviceMemory | None = None
) -> BudgetSplit:
    """The largest pool for `num_slots` requests within a budget.

    Raises CapacityError (rule G8) where the STATE entries alone exceed it; with `memory` the message says which
    fraction would do, or that others hold too much.
    """
    floor = state_floor(geometry, num_slots)
    if floor > budget_bytes:
        raise CapacityError(
            f"cache budget: got {budget_bytes} bytes, expected at least {floor} for {num_slots} STATE entries"
            + ("" if memory is None else _remedy(floor, memory))
        )
    num_pages = (budget_bytes - floor) // geometry.page_bytes
    # Zone starts are aligned, which may cost the last page; without pages nothing lies before STATE.
    while num_pages and placement(geometry, num_pages, num_slots).total_bytes > budget_bytes:
        num_pages -= 1
    return BudgetSplit(placement=placement(geometry, num_pages, num_slots), floor_bytes=floor)


def capacity_statement(geometry: PoolGeometry) -> str:
    """What a request costs, as ``STATE + PAGE share * tokens``: ``5,276,672 + 2,890 * tokens bytes``."""
    rate = geometry.bytes_per_token
    per_token = f"{rate.numerator:,}" if rate.denominator == 1 else f"{rate.numerator:,}/{rate.denominator:,}"
    return f"{geometry.state_bytes:,} + {per_token} * tokens bytes"


def _remedy(floor: int, memory: DeviceMemory) -> str:
    needed = floor + memory.held_bytes
    if needed > memory.total_bytes:
        return f"; {memory.held_bytes} of {memory.total_bytes} bytes are held by others"
    thousandths = -(-1000 * needed // memory.total_bytes)
    return f"; minimum memory fraction {thousandths / 1000:.3f}"
