"""What a model is, in one record: facts, layers, sizes; from config.json alone, without a weight.

`Anatomy.to_dict` is the stable form for programs; the command line prints the same facts for people.
Knows nothing of files and terminals.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields

from flash41.checkpoint.release import RELEASE_NAME, release_config
from flash41.checkpoint.stored import Scope
from flash41.config.architecture import ModelConfig
from flash41.config.topology import LayerSpec, Topology, topology
from flash41.tools.cache_figures import CacheFigures, cache_figures
from flash41.tools.ledger import Activation, Amount, Ledger, ledger
from flash41.tools.ledger_rows import Row, Storage
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
            "parameters": {"total": sizes.total.num_parameters, **_each(sizes, "num_parameters")},
            "bytes": {
                "total": sizes.total.num_bytes,
                **_each(sizes, "num_bytes"),
                "by_dtype": {dtype.value: count for dtype, count in sizes.bytes_by_dtype.items()},
            },
            "tensors": {"total": sizes.total.num_tensors, **_each(sizes, "num_tensors")},
            "active_parameters": {
                **_parts(sizes.activation),
                "without_embedding": sizes.activation_without_embedding,
                "encoder": sizes.encoder_activation.total,
            },
            "quantization": {kind.value: _storage(kind, amount) for kind, amount in sizes.storage.items()},
            "cache": self.cache.to_dict(),
        }


def dissect(config: ModelConfig) -> Anatomy:
    """The anatomy of a model; raises ConfigError where its layer lists break a rule."""
    return Anatomy(
        config=config,
        topology=topology(config),
        ledger=ledger(config),
        cache=cache_figures(config),
        name=RELEASE_NAME if config == release_config() else UNNAMED,
    )


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
