"""Where weights will live: all in memory, or in the files with the most useful part in memory.

    budget    --weights-memory, else 80 % of the memory available, less the caches
    resident  everything, or a refusal
    auto      everything where it fits into the budget; else what every step reads, and the hottest experts with the
              rest; else nothing
    mapped    nothing

Integers only.
"""

from dataclasses import dataclass

from flash41.checkpoint.residence import Residence, WeightSizes, weight_sizes
from flash41.checkpoint.stored import Scope
from flash41.config.architecture import ModelConfig
from flash41.config.run import RunWish, Weights
from flash41.errors import CapacityError, complaint

PERCENT = 80
"""Share of the memory available that is taken without being asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsPlan:
    """What is kept in memory, and why."""

    residence: Residence
    resident_bytes: int
    """Bytes of weights in memory."""
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Budget:
    num_bytes: int
    source: str


def weights_plan(
    wish: RunWish, config: ModelConfig, *, cache_bytes: int = 0, available_bytes: int | None = None
) -> WeightsPlan:
    """The plan of a wish; CapacityError where weights must be resident and do not fit.

    `available_bytes` is the memory that this process could still take, None where nobody knows: then what fits is not
    asked.  `cache_bytes` of it are spent already.
    """
    if wish.weights is Weights.MAPPED:
        return WeightsPlan(residence=Residence(), resident_bytes=0, reason="mapped, as asked: all stay in the files")
    budget = _budget(wish, cache_bytes, available_bytes)
    loaded = {Scope.BACKBONE: True, Scope.DRAFT: wish.drafts, Scope.VISION: wish.images}
    sizes = weight_sizes(config, [scope for scope, is_loaded in loaded.items() if is_loaded])
    if budget is None or sizes.total_bytes <= budget.num_bytes:
        fits = "" if budget is None else f", within {budget.num_bytes:,} bytes ({budget.source})"
        return WeightsPlan(
            residence=Residence(whole=True), resident_bytes=sizes.total_bytes, reason=f"resident: all weights{fits}"
        )
    if wish.weights is Weights.RESIDENT:
        expected = f"at most {budget.num_bytes}, {budget.source}"
        remedy = "weights auto keeps the hottest in memory, weights mapped none"
        raise CapacityError(complaint("bytes of resident weights", sizes.total_bytes, expected, remedy))
    return _hottest(sizes, budget)


def _budget(wish: RunWish, cache_bytes: int, available_bytes: int | None) -> _Budget | None:
    if wish.weights_memory_bytes is not None:
        return _Budget(num_bytes=wish.weights_memory_bytes, source="weights_memory_bytes, as asked")
    if available_bytes is None:
        return None
    source = f"{PERCENT} % of the {available_bytes:,} available, less the caches"
    return _Budget(num_bytes=max(0, available_bytes * PERCENT // 100 - cache_bytes), source=source)


def _hottest(sizes: WeightSizes, budget: _Budget) -> WeightsPlan:
    too_many = f"{sizes.total_bytes:,} bytes do not fit into {budget.num_bytes:,} ({budget.source})"
    if sizes.dense_bytes > budget.num_bytes:
        reason = f"mapped: {too_many}, nor do the {sizes.dense_bytes:,} that every step reads"
        return WeightsPlan(residence=Residence(), resident_bytes=0, reason=reason)
    rest = budget.num_bytes - sizes.dense_bytes
    num_experts = rest // sizes.one_expert_bytes if sizes.one_expert_bytes else 0
    hot_bytes = min(num_experts * sizes.one_expert_bytes, sizes.expert_bytes)
    per_layer = num_experts / max(1, sizes.num_expert_layers)
    reason = f"mapped: {too_many}; in memory is what every step reads and {per_layer:.1f} experts a layer, the hottest"
    return WeightsPlan(
        residence=Residence(dense=True, hot_bytes=hot_bytes),
        resident_bytes=sizes.dense_bytes + hot_bytes,
        reason=reason,
    )
