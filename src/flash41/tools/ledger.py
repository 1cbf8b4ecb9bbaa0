"""Where the parameters and bytes of a model are: exact integers from the schema alone.

A parameter is a weight element; a packed byte holds two, a scale none.  All numbers follow from the config, for the
release as for any other: 763,205,315,794 parameters, 510,286,023,000 bytes, 16,792,502,384 parameters per token.
Knows nothing of files.  spec: checkpoint.md section 5.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import TypeVar

from flash41.checkpoint.schema import kinds
from flash41.checkpoint.stored import Layout, Scope, StoredDtype, Subsystem
from flash41.config.architecture import ModelConfig
from flash41.tools.ledger_rows import ENGRAM, Row, Storage, manifest, owner, share, storage

Key = TypeVar("Key", bound=Hashable)
Counted = tuple[int, Layout, int]
"""Layer, what its tensors share, and how many there are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Amount:
    """How much of something there is."""

    num_tensors: int = 0
    """Tensors on disk, scales included."""
    num_parameters: int = 0
    """Weight elements."""
    num_bytes: int = 0
    """Bytes on disk, scales included."""

    def __add__(self, other: "Amount") -> "Amount":
        return Amount(
            num_tensors=self.num_tensors + other.num_tensors,
            num_parameters=self.num_parameters + other.num_parameters,
            num_bytes=self.num_bytes + other.num_bytes,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Activation:
    """Parameters that take part in one token."""

    routed: int
    """The chosen experts of all layers."""
    attention: int
    """Attention with its residual mixing and norm."""
    compressor: int
    """Compressors of the KV sources."""
    indexer: int
    """Index keys and queries of the sources."""
    shared: int
    """Shared experts."""
    embed_head_norm: int
    """The whole embedding matrix, the head, the final norm."""
    engram_projection: int
    """Projections and norms of the Engram layers, without tables."""
    gate_and_mhc: int
    """Router, residual mixing and norm of the expert part."""

    @property
    def total(self) -> int:
        """Sum of the parts."""
        return sum(getattr(self, part.name) for part in fields(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class Units:
    """Parameters of one of each."""

    expert: int
    """One routed expert of the backbone."""
    expert_bytes: int
    """Its bytes on disk."""
    attention_per_layer: int
    """Attention core of a layer, without residual mixing and norm."""
    attention_with_mhc_per_layer: int
    """With its residual mixing and norm."""
    mhc_set: int
    """One set of residual mixing parameters."""
    extra_by_layer: Mapping[int, int]
    """What compressor and indexer add, by layer; layers without either are absent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """All of it."""

    amounts: Mapping[Row, Amount]
    """The finest rows."""
    total: Amount
    """Their sum."""
    num_elements: int
    """Stored elements, scales included."""
    bytes_by_dtype: Mapping[StoredDtype, int]
    """Bytes on disk by format."""
    storage: Mapping[Storage, Amount]
    """By the way weights lie on disk."""
    owners: Mapping[str, Amount]
    """backbone, engram_tables, dspark, vision."""
    shares: Mapping[str, int]
    """Parameters by row of the published share table; `outside` holds what that table leaves out."""
    manifest: Mapping[str, Amount]
    """Tensors and bytes by subsystem as loaders report them."""
    encoder: Amount
    """Backbone layers before the last KV source, without Engram."""
    decoder: Amount
    """The other backbone layers, without Engram."""
    activation: Activation
    """Parameters per token."""
    encoder_activation: Activation
    """The same for the encoder's layers alone, where a prompt without decoder replay stops."""
    units: Units
    """Parameters of one of each."""

    @property
    def decoder_activation(self) -> int:
        """Parameters per token of the layers behind the encoder, which a bounded prefill skips for most tokens."""
        return self.activation.total - self.activation.embed_head_norm - self.encoder_activation.total

    @property
    def activation_without_embedding(self) -> int:
        """Parameters per token when the embedding counts as a look-up."""
        return self.activation.total - self.amounts[Scope.BACKBONE, Subsystem.EMBED].num_parameters

    def percent(self, row: str) -> float:
        """Share of all parameters, rounded to two decimals."""
        return round(100 * self.shares[row] / self.total.num_parameters, 2)


def ledger(config: ModelConfig) -> Ledger:
    """The ledger of a model."""
    counted = kinds(config)
    boundary = encoder_layers(config)
    counts = [(spec.layout, count) for spec, count in counted]
    amounts = _grouped(counts, _row)
    layers = [
        (spec.block_id, spec.layout, count)
        for spec, count in counted
        if spec.block_id is not None and spec.scope is Scope.BACKBONE
    ]
    encoder, decoder = (
        _grouped([(layout, count) for block_id, layout, count in layers if block_id in part], _row)
        for part in (range(boundary), range(boundary, config.num_layers))
    )
    by_dtype = _grouped(counts, lambda layout: layout.dtype)
    return Ledger(
        amounts=amounts,
        total=_sum(amounts.values()),
        num_elements=sum(amount.num_bytes // dtype.element_bytes for dtype, amount in by_dtype.items()),
        bytes_by_dtype={dtype: amount.num_bytes for dtype, amount in by_dtype.items()},
        storage=_grouped(counts, storage),
        owners=_merged(amounts, owner),
        shares={row: amount.num_parameters for row, amount in _merged(amounts, share).items()},
        manifest=_merged(amounts, manifest),
        encoder=_without_engram(encoder),
        decoder=_without_engram(decoder),
        activation=_activation(config, amounts),
        encoder_activation=_activation(config, encoder),
        units=_units(config, amounts, layers),
    )


def encoder_layers(config: ModelConfig) -> int:
    """Number of layers before the last KV source, which every later layer reads; all of them where there is none."""
    return max(config.attention.kv_source_layer_ids, default=config.num_layers)


def _sum(amounts: Iterable[Amount]) -> Amount:
    return sum(amounts, start=Amount())


def _row(layout: Layout) -> Row:
    return layout.scope, layout.subsystem


def _without_engram(amounts: Mapping[Row, Amount]) -> Amount:
    return _sum(amount for (_, subsystem), amount in amounts.items() if subsystem not in ENGRAM)


def _grouped(counts: Iterable[tuple[Layout, int]], key: Callable[[Layout], Key]) -> dict[Key, Amount]:
    result: dict[Key, Amount] = {}
    for layout, count in counts:
        amount = Amount(
            num_tensors=count,
            num_parameters=count * layout.num_parameters,
            num_bytes=count * layout.num_bytes,
        )
        result[key(layout)] = result.get(key(layout), Amount()) + amount
    return result


def _merged(amounts: Mapping[Row, Amount], name: Callable[[Row], str]) -> dict[str, Amount]:
    result: dict[str, Amount] = {}
    for row, amount in amounts.items():
        result[name(row)] = result.get(name(row), Amount()) + amount
    return result


def _activation(config: ModelConfig, amounts: Mapping[Row, Amount]) -> Activation:
    def parameters(*subsystems: Subsystem) -> int:
        rows = ((Scope.BACKBONE, subsystem) for subsystem in subsystems)
        return sum(amounts[row].num_parameters for row in rows if row in amounts)

    moe = config.moe
    return Activation(
        routed=parameters(Subsystem.ROUTED) // moe.num_experts * moe.num_experts_per_token,
        attention=parameters(Subsystem.ATTENTION, Subsystem.ATTENTION_MHC, Subsystem.ATTENTION_NORM),
        compressor=parameters(Subsystem.COMPRESSOR),
        indexer=parameters(Subsystem.INDEXER),
        shared=parameters(Subsystem.SHARED),
        embed_head_norm=parameters(Subsystem.EMBED, Subsystem.HEAD, Subsystem.FINAL_NORM),
        engram_projection=parameters(Subsystem.ENGRAM_PROJECTION, Subsystem.ENGRAM_NORM),
        gate_and_mhc=parameters(Subsystem.GATE, Subsystem.MOE_MHC, Subsystem.MOE_NORM),
    )


def _units(config: ModelConfig, amounts: Mapping[Row, Amount], layers: Iterable[Counted]) -> Units:
    num_layers = config.num_layers
    routed = amounts[Scope.BACKBONE, Subsystem.ROUTED]
    num_experts = num_layers * config.moe.num_experts
    core, mixing, norm = (
        amounts[Scope.BACKBONE, subsystem].num_parameters // num_layers
        for subsystem in (Subsystem.ATTENTION, Subsystem.ATTENTION_MHC, Subsystem.ATTENTION_NORM)
    )
    extra: Counter[int] = Counter()
    for layer_id, layout, count in layers:
        if layout.subsystem in (Subsystem.COMPRESSOR, Subsystem.INDEXER):
            extra[layer_id] += count * layout.num_parameters
    return Units(
        expert=routed.num_parameters // num_experts,
        expert_bytes=routed.num_bytes // num_experts,
        attention_per_layer=core,
        attention_with_mhc_per_layer=core + mixing + norm,
        mhc_set=mixing,
        extra_by_layer=dict(extra),
    )
