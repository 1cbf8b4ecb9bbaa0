"""A slice of a model: all widths true, a few of its layers, a few experts in each, a short n-gram table or none.

Which layers: one that adds a mode comes before one that repeats it, and a layer never comes without the layers whose
rows and selections it reads.  They keep their order:

    release, 4 layers    0 WINDOW   20 FULL, source of the candidates   21 REUSE   24 REINDEX

The slice has no draft stages and one block of the vision tower.  Knows nothing of files and tensors.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from flash41.config.architecture import AttentionConfig, EngramConfig, ModelConfig
from flash41.config.primes import table_rows
from flash41.config.topology import LayerMode, LayerSpec, topology
from flash41.config.validation import model_faults
from flash41.errors import ConfigError, combined, complaint

LEAST_BUCKETS = 8
"""Rows of one hash head below which a table would be all collisions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceWish:
    """How much of a model."""

    layers: int
    """Backbone layers."""
    experts: int
    """Routed experts of each layer."""
    engram_rows: int | None = None
    """Rows of the one n-gram table, about; None for a slice without."""


def sliced(config: ModelConfig, wish: SliceWish) -> ModelConfig:
    """The slice of a model; raises ConfigError with everything that the model has no room for."""
    faults = list(_refusals(config, wish))
    if faults:
        raise ConfigError(combined(faults))
    kept = kept_layers(config, wish.layers)
    place = {layer_id: number for number, layer_id in enumerate(kept)}
    source = config.indexer.candidate_source_layer_id
    found = replace(
        config,
        num_layers=len(kept),
        attention=_attention(config.attention, place),
        indexer=replace(config.indexer, candidate_source_layer_id=None if source is None else place.get(source)),
        moe=replace(config.moe, num_experts=wish.experts),
        engram=_engram(config.engram, wish),
        dspark=replace(config.dspark, num_stages=0, target_layer_ids=()),
        vision=replace(config.vision, num_layers=1),
    )
    faults = model_faults(found)
    if faults:
        raise ConfigError(combined(faults))
    topology(found)
    return found


def kept_layers(config: ModelConfig, count: int) -> tuple[int, ...]:
    """The layers of a slice, ascending."""
    layers = topology(config).layers
    kept: set[int] = set()
    for spec in (*_one_of_each(layers), *layers):
        wanted = kept | {spec.layer_id, *(owner for owner in (spec.kv_owner, spec.topk_owner) if owner is not None)}
        if len(wanted) <= count:
            kept = wanted
    return tuple(sorted(kept))


def _one_of_each(layers: tuple[LayerSpec, ...]) -> Iterator[LayerSpec]:
    """The candidate source, then the first layer of each mode, those that share its plane before all others."""
    source = next((spec for spec in layers if spec.produces_candidates), None)
    if source is not None:
        yield source
    for mode in (LayerMode.WINDOW, LayerMode.REINDEX, LayerMode.REUSE, LayerMode.FULL):
        of_mode = [spec for spec in layers if spec.mode is mode and spec is not source]
        beside = [spec for spec in of_mode if source is not None and spec.kv_owner == source.kv_owner]
        yield from (beside or of_mode)[:1]


def _refusals(config: ModelConfig, wish: SliceWish) -> Iterator[str]:
    if not 1 <= wish.layers <= config.num_layers:
        yield complaint("layers of a slice", wish.layers, f"1 to the {config.num_layers} of the model")
    least, most = config.moe.num_experts_per_token, config.moe.num_experts
    if not least <= wish.experts <= most:
        yield complaint("experts of a slice", wish.experts, f"{least}, which a token visits, to the model's {most}")
    least = LEAST_BUCKETS * config.engram.num_columns
    if wish.engram_rows is not None and not least <= wish.engram_rows <= _most_rows(config):
        expected = f"{least} to the {_most_rows(config)} of the model"
        yield complaint("engram rows of a slice", wish.engram_rows, expected)


def _most_rows(config: ModelConfig) -> int:
    return max(config.engram.table_rows, default=0)


def _attention(attention: AttentionConfig, place: dict[int, int]) -> AttentionConfig:
    return replace(
        attention,
        compress_ratios=tuple(attention.compress_ratios[layer_id] for layer_id in place),
        kv_source_layer_ids=tuple(place[owner] for owner in attention.kv_source_layer_ids if owner in place),
        index_source_layer_ids=tuple(place[scorer] for scorer in attention.index_source_layer_ids if scorer in place),
    )


def _engram(engram: EngramConfig, wish: SliceWish) -> EngramConfig:
    if wish.engram_rows is None:
        return replace(engram, layer_ids=(), table_rows=())
    smallest = wish.engram_rows // engram.num_columns
    rows = table_rows(smallest, engram.num_heads, engram.max_ngram, 1)
    return replace(engram, layer_ids=(min(1, wish.layers - 1),), table_rows=rows, vocab_size=smallest)
