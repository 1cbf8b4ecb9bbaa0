"""What a model is, in one record: facts, layers, sizes; from config.json and, where there is one, the index.

`Anatomy.to_dict` is the stable form for programs; the command line prints the same facts for people.
Opens no shard and knows nothing of terminals.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from flash41.checkpoint.collector import collector_paused
from flash41.checkpoint.faults import FaultyCheckpointError
from flash41.checkpoint.release import RELEASE_NAME, release_config
from flash41.checkpoint.schema import kinds
from flash41.checkpoint.stored import Scope
from flash41.config.architecture import ModelConfig
from flash41.config.topology import LayerSpec, Topology, topology
from flash41.tools.cache_figures import CacheFigures, cache_figures
from flash41.tools.ledger import Activation, Amount, Ledger, ledger
from flash41.tools.ledger_rows import Row, Storage
from flash41.tools.modes import ModeRow, mode_rows
from flash41.tools.patterns import PatternRow, patterns
from flash41.tools.shards import shard_amounts
from flash41.tools.strip import IndexGroup, index_groups

ARCHITECTURE = "DeepseekV41ForCausalLM"
MODEL_TYPE = "deepseek_v41"
UNNAMED = "not a released model (by its configuration)"

STORAGE_FORMATS = {
    Storage.FP4_EXPERTS: ("E2M1", "E8M0", (1, 32)),
    Storage.FP8_DENSE: ("E4M3", "E8M0", (32, 32)),
    Storage.FP8_ROWS: ("E4M3", "E8M0", (1, 32)),
    Storage.BF16: ("BF16", None, None),
    Storage.FP32: ("FP32", None, None),
}
"""Element, scale, and rows by channels that share a scale.  spec: number-formats.md section 7."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Anatomy:
    """A model taken apart."""

    config: ModelConfig
    """What its file states."""
    topology: Topology
    """What its layers do."""
    ledger: Ledger
    """How large it is."""
    cache: CacheFigures
    """What its cache costs."""
    name: str
    """The released model with this configuration, if there is one."""
    modes: tuple[ModeRow, ...]
    """What layers of each mode add, write and score."""
    patterns: tuple[PatternRow, ...]
    """Tensors by the pattern of their names."""
    shards: Mapping[str, Amount]
    """What each file holds by the index; empty without a directory."""
    index_faults: tuple[str, ...]
    """Why the files are not shown although there is a directory."""

    @property
    def groups(self) -> tuple[IndexGroup, ...]:
        """Runs of layers that read the same rows."""
        return index_groups(self.topology)

    def to_dict(self) -> dict[str, object]:
        """All of it as JSON values, under stable keys."""
        sizes = self.ledger
        facts = asdict(self.config)
        return {
            "name": self.name,
            "architecture": ARCHITECTURE,
            "model_type": MODEL_TYPE,
            "token_ids": {**facts.pop("tokens"), "draft_noise": self.config.dspark.noise_token_id},
            "config": facts,
            "layers": [_layer(layer) for layer in (*self.topology.layers, *self.topology.drafts)],
            "groups": [_group(group) for group in self.groups],
            "modes": {row.mode.value: row.to_dict() for row in self.modes},
            "rows_per_query": _rows_per_query(self.config),
            "engram_reads": _engram_reads(self.config),
            "units": asdict(sizes.units),
            "shares": {
                row: {"parameters": count, "percent": sizes.percent(row)} for row, count in sizes.shares.items()
            },
            "parameters": {"total": sizes.total.num_parameters, **_each(sizes, "num_parameters")},
            "bytes": {
                "total": sizes.total.num_bytes,
                **_each(sizes, "num_bytes"),
                "by_dtype": {dtype.value: count for dtype, count in sizes.bytes_by_dtype.items()},
            },
            "tensors": {
                "total": sizes.total.num_tensors,
                **_each(sizes, "num_tensors"),
                "by_pattern": [row.to_dict() for row in self.patterns],
                "by_shard": {shard: asdict(amount) for shard, amount in self.shards.items()},
            },
            "active_parameters": {
                **_parts(sizes.activation),
                "without_embedding": sizes.activation_without_embedding,
                "encoder": sizes.encoder_activation.total,
                "decoder": sizes.decoder_activation,
            },
            "quantization": {kind.value: _storage(kind, amount) for kind, amount in sizes.storage.items()},
            "cache": self.cache.to_dict(),
        }


@collector_paused()
def dissect(config: ModelConfig, directory: Path | None = None) -> Anatomy:
    """The anatomy of a model and of its files; raises ConfigError where its layer lists break a rule."""
    counted, layers, sizes = kinds(config), topology(config), ledger(config)
    shards: Mapping[str, Amount] = {}
    faults: tuple[str, ...] = ()
    if directory is not None:
        try:
            shards = shard_amounts(directory, counted)
        except FaultyCheckpointError as error:
            faults = tuple(fault.message for fault in error.faults)
    return Anatomy(
        config=config,
        topology=layers,
        ledger=sizes,
        cache=cache_figures(config),
        name=RELEASE_NAME if config == release_config() else UNNAMED,
        modes=mode_rows(layers, config, sizes.units.extra_by_layer),
        patterns=patterns(counted),
        shards=shards,
        index_faults=faults,
    )


def _rows_per_query(config: ModelConfig) -> dict[str, int]:
    """Rows an attention query reads at most: its window, and the compressed rows selected for it."""
    window, selected = config.attention.window, config.indexer.topk
    return {"window": window, "selected": selected, "total": window + selected}


def _engram_reads(config: ModelConfig) -> dict[str, object]:
    """What a token reads of the n-gram tables, and how large a table would be in FP32."""
    engram = config.engram
    return {
        "rows_per_layer": engram.num_columns,
        "width": engram.width,
        "elements_per_token": engram.width * len(engram.layer_ids),
        "table_fp32_bytes": [4 * rows * engram.head_dim for rows in engram.table_rows],
    }


def _layer(layer: LayerSpec) -> dict[str, object]:
    return {**asdict(layer), "mode": layer.mode.value}


def _group(group: IndexGroup) -> dict[str, object]:
    return {**asdict(group), "modes": [mode.value for mode in group.modes]}


def _each(sizes: Ledger, count: str) -> dict[str, object]:
    """One count by category (the finest rows) and by owner."""
    categories: dict[str, int] = {}
    for row, amount in sizes.amounts.items():
        category = _category(row)
        categories[category] = categories.get(category, 0) + getattr(amount, count)
    return {
        "by_category": categories,
        "by_owner": {name: getattr(amount, count) for name, amount in sizes.owners.items()},
    }


def _category(row: Row) -> str:
    scope, subsystem = row
    if scope is Scope.VISION:
        return Scope.VISION.value
    return f"dspark_{subsystem.value}" if scope is Scope.DRAFT else subsystem.value


def _parts(activation: Activation) -> Mapping[str, int]:
    return {"total": activation.total, **{part.name: getattr(activation, part.name) for part in fields(activation)}}


def _storage(kind: Storage, amount: Amount) -> dict[str, object]:
    element, scale, group = STORAGE_FORMATS[kind]
    return {"element": element, "scale": scale, "group": list(group) if group else None, **asdict(amount)}
