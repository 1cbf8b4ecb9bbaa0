"""Which layer does what: the four attention modes, owners, index groups, and the rules that a layer list must keep.

A pure function of the configuration.  Three registers walk up the layers (spec: config.md section 5.1):

    layer   0 1 | 2 3 .. 7 | 8 .. 13 | 14 .. 19 | 20 21 22 23 | 24 .. 27 | ..      release
    ratio   0 0 | 2 2 .. 2 | 2 ..  2 |  2 ..  2 |  1  1  1  1 |  1 ..  1
    KV owner    |    2     |    8    |    14    |     20      |    20
    top-k owner |    2     |    8    |    14    |     20      |    24

Knows nothing of tensors or pools.
"""

import enum
from dataclasses import dataclass
from itertools import groupby

from flash41.config.architecture import ModelConfig
from flash41.config.topology_rules import check_topology, largest_at_or_below


class LayerMode(enum.Enum):
    """How a layer comes to the compressed rows it reads.  spec: config.md section 5.1."""

    WINDOW = "WINDOW"
    """Reads none, only its own window."""
    FULL = "FULL"
    """Writes a plane and selects from it."""
    REINDEX = "REINDEX"
    """Selects anew from an earlier layer's plane."""
    REUSE = "REUSE"
    """Reads the rows an earlier layer selected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSpec:
    """Everything the topology says about one layer or draft stage."""

    layer_id: int
    """Backbone layers count from 0; draft stages follow the last one."""
    ratio: int
    """Tokens per compressed row; 0 = window only."""
    mode: LayerMode
    """Where its rows come from."""
    kv_owner: int | None
    """Layer whose plane it reads, None for WINDOW."""
    topk_owner: int | None
    """Layer whose selection it uses, None for WINDOW."""
    produces_candidates: bool
    """Whether its scores bound the later scorers."""
    bounded_by_candidates: bool
    """Whether it scores candidate rows only; REUSE layers inherit the restricted selection and are not marked."""
    has_engram: bool
    """Whether an Engram table is added in front of it."""
    is_tap: bool
    """Whether its input feeds the drafter."""
    is_draft: bool
    """Whether it is a draft stage."""
    group_start: int
    """First layer of its index group."""

    @property
    def writes_plane(self) -> bool:
        """Whether it has a compressor and writes main and index rows."""
        return self.mode is LayerMode.FULL

    @property
    def scores(self) -> bool:
        """Whether it has an indexer."""
        return self.mode in (LayerMode.FULL, LayerMode.REINDEX)


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """All layers of a model."""

    layers: tuple[LayerSpec, ...]
    """Backbone, in order."""
    drafts: tuple[LayerSpec, ...]
    """Draft stages, in order, all WINDOW."""

    @property
    def kv_owners(self) -> tuple[int, ...]:
        """Layers that write a plane, ascending."""
        return tuple(layer.layer_id for layer in self.layers if layer.writes_plane)

    @property
    def scorers(self) -> tuple[int, ...]:
        """Layers that select rows, ascending."""
        return tuple(layer.layer_id for layer in self.layers if layer.scores)

    @property
    def taps(self) -> tuple[int, ...]:
        """Layers whose inputs feed the drafter, ascending."""
        return tuple(layer.layer_id for layer in self.layers if layer.is_tap)

    def groups(self) -> tuple[tuple[LayerSpec, ...], ...]:
        """Index groups: maximal runs of equal ratio, KV owner and top-k owner; the drafts form groups of their own."""
        runs = groupby((*self.layers, *self.drafts), key=lambda layer: layer.group_start)
        return tuple(tuple(run) for _, run in runs)


def topology(config: ModelConfig) -> Topology:
    """The layers of `config`.  Raises ConfigError for the first broken rule of T1 to T15.

    spec: config.md sections 4.3 and 5.1.
    """
    check_topology(config)
    layers: list[LayerSpec] = []
    for layer_id in range(config.num_layers):
        layers.append(_layer(config, layer_id, layers[-1] if layers else None))
    drafts = tuple(_draft(config, config.num_layers + stage) for stage in range(config.dspark.num_stages))
    return Topology(layers=tuple(layers), drafts=drafts)


def _layer(config: ModelConfig, layer_id: int, previous: LayerSpec | None) -> LayerSpec:
    attention, source = config.attention, config.indexer.candidate_source_layer_id
    ratio = attention.compress_ratios[layer_id]
    # Closed form of the registers: an owner is the largest listed source at or below the layer.
    kv_owner = largest_at_or_below(attention.kv_source_layer_ids, layer_id) if ratio else None
    topk_owner = largest_at_or_below(attention.index_source_layer_ids, layer_id) if ratio else None
    mode = _mode(layer_id, ratio, kv_owner, topk_owner)
    continues = previous is not None and (ratio, kv_owner, topk_owner) == (
        previous.ratio,
        previous.kv_owner,
        previous.topk_owner,
    )
    return LayerSpec(
        layer_id=layer_id,
        ratio=ratio,
        mode=mode,
        kv_owner=kv_owner,
        topk_owner=topk_owner,
        produces_candidates=layer_id == source,
        bounded_by_candidates=mode is LayerMode.REINDEX and source is not None and layer_id > source,
        has_engram=layer_id in config.engram.layer_ids,
        is_tap=layer_id in config.dspark.target_layer_ids,
        is_draft=False,
        group_start=previous.group_start if continues and previous is not None else layer_id,
    )


def _mode(layer_id: int, ratio: int, kv_owner: int | None, topk_owner: int | None) -> LayerMode:
    if ratio == 0:
        return LayerMode.WINDOW
    if layer_id == kv_owner:
        return LayerMode.FULL
    return LayerMode.REINDEX if layer_id == topk_owner else LayerMode.REUSE


def _draft(config: ModelConfig, layer_id: int) -> LayerSpec:
    return LayerSpec(
        layer_id=layer_id,
        ratio=0,
        mode=LayerMode.WINDOW,
        kv_owner=None,
        topk_owner=None,
        produces_candidates=False,
        bounded_by_candidates=False,
        has_engram=False,
        is_tap=False,
        is_draft=True,
        group_start=config.num_layers,
    )
