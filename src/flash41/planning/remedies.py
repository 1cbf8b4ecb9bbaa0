"""What to change where a demand does not fit: each change is tried, and only those that make it fit are named.

Integers only.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

from flash41.config.architecture import ModelConfig
from flash41.config.run import Draft, PoolDtype
from flash41.errors import ConfigError
from flash41.planning.capacity import MachinePlan, demand_fits
from flash41.planning.demand import Demand, check_demand
from flash41.planning.machine import RESERVE_SHARE, Machine, MachineKind

MOST_DEVICES = 64
"""GPUs that are tried."""
FEW_ROWS = 128
"""Rows of a smaller forward."""
STEP_BYTES = 2**30
"""A sufficient memory is told in whole GiB."""


def remedies(config: ModelConfig, plan: MachinePlan) -> tuple[str, ...]:
    """Changes each of which alone is enough, the cheapest first; empty where the plan fits."""
    return () if plan.fits else tuple(_remedies(config, plan))


def _remedies(config: ModelConfig, plan: MachinePlan) -> Iterator[str]:
    for text, demand in _lighter(plan.demand):
        if _is_enough(config, plan, demand, plan.machine):
            yield text
    if plan.largest_requests:
        yield f"--concurrency {plan.largest_requests}"
    if plan.largest_context:
        yield f"--context {plan.largest_context}"
    if plan.machine.kind is MachineKind.GPU:
        for count in range(plan.machine.num_devices + 1, MOST_DEVICES + 1):
            if _is_enough(config, plan, plan.demand, replace(plan.machine, num_devices=count)):
                yield f"--gpus {count}"
                break
    gibs = _fewest_gibs(plan, lambda count: _is_enough(config, plan, plan.demand, _larger(plan, count)))
    if gibs is not None:
        yield f"--{plan.machine.kind.value} {gibs}G"


def _lighter(demand: Demand) -> Iterator[tuple[str, Demand]]:
    """Demands that need less, and how they are asked for."""
    wish = demand.wish
    if wish.pool.main is not PoolDtype.FP4:
        yield "--kv-cache-dtype fp4", replace(demand, wish=replace(wish, kv_cache_dtype=PoolDtype.FP4))
    if wish.drafts:
        yield "--draft off", replace(demand, wish=replace(wish, draft=Draft.OFF))
    if demand.images:
        yield "without --images", replace(demand, images=False)
    if wish.prefix_cache:
        yield "--no-prefix-cache", replace(demand, wish=replace(wish, prefix_cache=False))
    if wish.max_num_batched_tokens > FEW_ROWS:
        fewer = replace(wish, max_num_batched_tokens=FEW_ROWS)
        yield f"--max-num-batched-tokens {FEW_ROWS}", replace(demand, wish=fewer)


def _is_enough(config: ModelConfig, plan: MachinePlan, demand: Demand, found: Machine) -> bool:
    """Whether a demand is admitted and fits."""
    try:
        check_demand(config, found, demand)
    except ConfigError:
        return False
    now = (plan.machine.num_devices, plan.demand.wish.drafts, plan.demand.images)
    is_same = (found.num_devices, demand.wish.drafts, demand.images) == now
    return demand_fits(config, found, demand, plan.weights if is_same else None)


def _fewest_gibs(plan: MachinePlan, is_enough: Callable[[int], bool]) -> int | None:
    """The smallest sufficient memory in whole GiB, from what is surely needed up to the double of it."""
    low = -(-plan.needed_bytes // STEP_BYTES)
    high = 2 * low + 1
    if not is_enough(high):
        return None
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle + 1, high)
    return low


def _larger(plan: MachinePlan, gibs: int) -> Machine:
    """The machine with another memory and the default reserve, or the one it has where that is no tenth."""
    found, num_bytes = plan.machine, gibs * STEP_BYTES
    is_default = found.reserve_bytes == found.device_bytes // RESERVE_SHARE
    reserve = num_bytes // RESERVE_SHARE if is_default else found.reserve_bytes
    return replace(found, device_bytes=num_bytes, reserve_bytes=reserve)
