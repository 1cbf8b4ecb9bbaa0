"""What somebody wants to run on a machine: the wish of a run, and whether pictures are read.

All refusals come together: rules of the switches, sizes that ranks divide, widths and pages of the cache, the machine.
Integers only.  spec: config.md sections 4.4 to 4.8.
"""

from dataclasses import dataclass

from flash41.cache.geometry import PoolGeometry, pool_geometry
from flash41.cache.geometry_rules import geometry_faults, geometry_inputs
from flash41.cache.placement import placement
from flash41.config.architecture import ModelConfig
from flash41.config.run import RunWish
from flash41.config.run_rules import broken_rules
from flash41.errors import ConfigError, combined
from flash41.parallel.sharding import parallel_faults
from flash41.planning.machine import Machine, machine_faults
from flash41.planning.resolve import draft_tokens, window_slot_bytes
from flash41.planning.weights import parallel_counts


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """A run whose sizes are all stated."""

    wish: RunWish
    """Switches; `max_model_len` is the context, `max_num_seqs` the requests side by side."""
    images: bool
    """Whether the image encoder is loaded."""

    @property
    def context(self) -> int:
        """Tokens of one request, prompt and answer."""
        assert self.wish.max_model_len is not None, "a demand states its context"
        return self.wish.max_model_len

    @property
    def requests(self) -> int:
        """Requests side by side."""
        return self.wish.max_num_seqs

    @property
    def element_bytes(self) -> int:
        """Bytes of an activation."""
        return 2 if self.wish.profile.bf16_stores else 4


def check_demand(config: ModelConfig, found: Machine, demand: Demand) -> None:
    """Raises one ConfigError with everything that speaks against a demand, whatever memory there is."""
    faults = [*machine_faults(found), *broken_rules(demand.wish, config)]
    if found.num_devices >= 1:
        faults += parallel_faults(parallel_counts(config), found.num_devices, found.num_devices)
    if config.attention.kv_source_layer_ids and demand.wish.block_size > 0:
        tokens = draft_tokens(demand.wish, config)
        faults += geometry_faults(geometry_inputs(config, demand.wish.pool, demand.wish.block_size, tokens))
    distinct = list(dict.fromkeys(faults))
    if distinct:
        raise ConfigError(combined(distinct, None if len(distinct) == 1 else f"plan: {len(distinct)} faults"))


def demand_geometry(config: ModelConfig, demand: Demand) -> PoolGeometry | None:
    """Geometry of the pool; None for a model whose layers have windows only."""
    if not config.attention.kv_source_layer_ids:
        return None
    wish = demand.wish
    return pool_geometry(config, wish.pool, block_size=wish.block_size, draft_tokens=draft_tokens(wish, config))


def pool_bytes(config: ModelConfig, demand: Demand, requests: int, context: int) -> int:
    """Bytes of pages and STATE with which so many requests reach so many tokens together; images apart."""
    geometry = demand_geometry(config, demand)
    if geometry is None:
        return requests * window_slot_bytes(demand.wish, config)
    return placement(geometry, requests * geometry.pages_for(context), requests).total_bytes
