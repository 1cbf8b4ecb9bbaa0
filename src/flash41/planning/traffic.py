"""Bytes that a decode step reads from each memory, and the speed that no machine with such memories exceeds.

    weights     dense + head again where drafts are made + distinct experts            of one rank, once per step
    experts     layers * E (1 - (1 - k/E)^n) of each rank's share                      n rows, routed evenly (assumed)
    cache       per request: windows of all layers, selected rows, index keys scored   grows with the context
    Engram      rows * tables * columns * (codes + scales)                             from the host, or the disk

    tokens per second <= tokens of a step * bandwidth / bytes of a step,   the least over the memories

It is a ceiling: nothing but reading is counted, and every draft is taken as accepted.  One request of n = 1 row reads
exactly k experts a layer, so its ceiling rests on no assumption about routing.  Integers and fractions only.
spec: checkpoint.md section 5, attention.md section 11, cache.md section 2.
"""

from dataclasses import dataclass
from fractions import Fraction

from flash41.cache.geometry import PoolGeometry
from flash41.config.architecture import ModelConfig
from flash41.config.topology import LayerMode, topology
from flash41.planning.machine import Machine
from flash41.planning.weights import RankWeights

GROUP = 32
"""Channels of an Engram row that share a scale byte."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Residence:
    """Which part of what is read in parts stays in memory; the rest comes from the disk."""

    experts: Fraction
    """Of the routed experts."""
    tables: Fraction
    """Of the Engram tables."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """One decode step."""

    requests: int
    """Requests side by side."""
    tokens: int
    """Tokens that the step can yield."""
    weight_bytes: int
    """Weights that a rank reads, experts among them."""
    expert_bytes: int
    """Of these, routed experts, drafts' among them."""
    cache_bytes: int
    """Cached rows that a rank reads."""
    engram_bytes: int
    """Rows of the n-gram tables that are gathered on the host."""
    disk_bytes: int
    """Bytes that come from the disk, in the mean."""
    memory_millitokens: int
    """Thousandths of tokens per second that the memory allows, over all requests."""
    disk_millitokens: int | None
    """The same for the disk; None where a step reads nothing from it."""

    @property
    def memory_bytes(self) -> int:
        """Bytes that a rank reads from its memory."""
        return self.weight_bytes + self.cache_bytes

    @property
    def millitokens(self) -> int:
        """The ceiling, in thousandths of tokens per second."""
        if self.disk_millitokens is None:
            return self.memory_millitokens
        return min(self.memory_millitokens, self.disk_millitokens)

    @property
    def roof(self) -> str:
        """What the ceiling is due to."""
        return "memory" if self.millitokens == self.memory_millitokens else "disk"


def step_traffic(
    config: ModelConfig,
    weights: RankWeights,
    geometry: PoolGeometry | None,
    found: Machine,
    residence: Residence,
    *,
    requests: int,
    context: int,
    draft_tokens: int,
) -> Traffic:
    """A step in which each of `requests` requests of `context` tokens computes its next token, and drafts' check."""
    width = 1 + draft_tokens
    rows = requests * width
    experts = _experts(weights.expert_bytes, config.moe.num_experts, config.moe.num_experts_per_token, rows)
    dense = weights.dense_bytes
    if draft_tokens:
        dspark = config.dspark
        drafted = _experts(
            weights.draft_expert_bytes, dspark.num_experts, dspark.num_experts_per_token, requests * draft_tokens
        )
        experts += drafted
        dense += weights.draft_dense_bytes + weights.head_bytes
    cache = requests * request_read_bytes(config, geometry, context) if geometry else 0
    engram = rows * engram_read_bytes(config)
    disk = int(experts * (1 - residence.experts) + engram * (1 - residence.tables))
    in_memory = dense + int(experts) + cache
    return Traffic(
        requests=requests,
        tokens=rows,
        weight_bytes=dense + int(experts),
        expert_bytes=int(experts),
        cache_bytes=cache,
        engram_bytes=engram,
        disk_bytes=disk,
        memory_millitokens=_millitokens(found.memory_bandwidth, rows, in_memory),
        disk_millitokens=_millitokens(found.disk_read, rows, disk) if disk else None,
    )


def request_read_bytes(config: ModelConfig, geometry: PoolGeometry, context: int) -> int:
    """Cached bytes that the token at the end of `context` tokens reads in the backbone."""
    window = min(context, config.attention.window) * geometry.window_row_bytes
    bounded = config.indexer.candidate_blocks * config.indexer.candidate_block_size
    total = 0
    for layer in topology(config).layers:
        total += window
        if layer.mode is LayerMode.WINDOW:
            continue
        visible = context // layer.ratio
        total += min(visible, config.indexer.topk) * geometry.main_row_bytes
        if layer.scores:
            scored = min(visible, bounded) if layer.bounded_by_candidates else visible
            total += scored * geometry.index.row_bytes
    return total


def engram_read_bytes(config: ModelConfig) -> int:
    """Bytes of the table rows that one token reads, codes and scales."""
    engram = config.engram
    return len(engram.layer_ids) * engram.num_columns * (engram.head_dim + engram.head_dim // GROUP)


def _experts(num_bytes: int, num_experts: int, per_token: int, rows: int) -> Fraction:
    """Bytes of the distinct experts that `rows` evenly routed rows read, in the mean."""
    missed = Fraction(num_experts - per_token, num_experts) ** rows
    return num_bytes * (1 - missed)


def _millitokens(rate: int, tokens: int, num_bytes: int) -> int:
    return 1000 * rate * tokens // max(1, num_bytes)
