"""A checkpoint that was checked whole, and its weights by name.

Opening reads config.json, the index and all headers, compares them with the schema, and looks at the scales of dense
weights; the weights themselves stay on disk until used.  Every tensor must be bound by somebody (rule C4), so that a
name pattern that matches nothing cannot go unnoticed.  spec: checkpoint.md sections 7 and 8, config.md section 4.9.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from flash41.checkpoint.agreement import disagreement
from flash41.checkpoint.collector import collector_paused
from flash41.checkpoint.dense_ahead import DenseAhead
from flash41.checkpoint.directory import CheckpointFiles, survey
from flash41.checkpoint.expert_counts import ExpertCounts
from flash41.checkpoint.faults import Fault, FaultKind, FaultyCheckpointError, listed
from flash41.checkpoint.layer_experts import LayerExperts
from flash41.checkpoint.mapped_weights import MappedWeights
from flash41.checkpoint.reader import MappedShards
from flash41.checkpoint.residence import ROWS, Residence, is_dense, weight_sizes
from flash41.checkpoint.resident import Progress, read_resident
from flash41.checkpoint.row_ahead import RowsAhead
from flash41.checkpoint.schema import TILE, schema
from flash41.checkpoint.stored import Scope, StoredDtype, Subsystem, TensorSpec
from flash41.config.architecture import ModelConfig
from flash41.config.huggingface import read_config
from flash41.errors import CheckpointError, complaint
from flash41.numerics.scaled import ElementFormat, Quantized, ScaleFormat

NAN_SCALE = 255
LAZY_SCALES = (Subsystem.ROUTED, Subsystem.ENGRAM_TABLE)
"""Scales that may be too many to look at while opening: an expert's are then checked at its first use, a table's rows
when gathered."""
MOST_BYTES_AT_OPEN = 64 << 20
"""Where these scales have no more bytes than this, all are looked at while opening."""


class Checkpoint:
    """Weights by name, and the record of who took which."""

    def __init__(
        self, config: ModelConfig, specs: Mapping[str, TensorSpec], shards: MappedShards, scopes: Collection[Scope]
    ) -> None:
        self.config = config
        self.specs = specs
        self.scopes = frozenset(scopes)
        self._shards = shards
        self._bound: set[str] = set()
        self._checked: set[str] = set()
        self._held: dict[str, Tensor] = {}
        self._banded: set[str] = set()
        self._dense_names: list[str] = []
        self._mapped: MappedWeights | None = None

    @property
    def files(self) -> CheckpointFiles:
        """Its files as their headers describe them."""
        return self._shards.files

    @property
    def directory(self) -> Path:
        """Folder of the shards."""
        return self._shards.files.directory

    def tensor(self, name: str) -> Tensor:
        """Binds a tensor and returns it as stored: BF16, F32, or uint8 for codes and scales.  Do not write to it.

        Of a scaled weight the bytes are those of the file, which `hold` may have moved: ask `quantized` for one.

        CheckpointError for a name outside the schema or the opened scopes.
        """
        self._bind(name)
        return self._bytes(name)

    def hold(self, residence: Residence, progress: Progress | None = None, in_bands: bool = False) -> None:
        """Reads into memory what a residence keeps there, before anybody binds it; afterwards experts are counted.

        `in_bands` lays scaled weights out anew there (`numerics.bands`).  FaultyCheckpointError when a file changed.
        """
        assert not self._bound, f"{len(self._bound)} tensors are bound to their mapping"
        loaded = [spec for spec in self.specs.values() if spec.scope in self.scopes]
        kept = [spec for spec in loaded if residence.whole or (residence.dense and is_dense(spec))]
        if kept:
            self._held = read_resident(self._shards, kept, progress)
        if in_bands:
            names = [spec.name for spec in kept if spec.layout.is_scale and spec.subsystem not in ROWS]
            prefixes = [name.removesuffix(".scale") for name in names]
            self._banded = {prefix for prefix in prefixes if self._as_stored(prefix).put_in_bands().in_bands}
        if residence.is_mapped:
            self._mapped = MappedWeights(self._shards, weight_sizes(self.config, self.scopes), residence.hot_bytes)

    def layer_experts(self, prefix: str) -> LayerExperts | None:
        """Whoever knows where the experts below a prefix are; None where all are in memory, or nobody counts."""
        return None if self._mapped is None else self._mapped.layer(prefix)

    def dense_ahead(self, prefix: str) -> DenseAhead | None:
        """Asks for the dense weights below ``layers.3.`` before they are read; None where they are in memory."""
        if self._mapped is None:
            return None
        if not self._dense_names:
            dense = [spec.name for spec in self.specs.values() if is_dense(spec) and spec.scope in self.scopes]
            self._dense_names = [name for name in dense if name not in self._held]
        names = [name for name in self._dense_names if name.startswith(prefix)]
        return self._mapped.dense(names) if names else None

    @property
    def expert_counts(self) -> list[ExpertCounts]:
        """Counts of all layers whose experts are read from the files."""
        return [] if self._mapped is None else [layer.counts for layer in self._mapped.layers]

    def quantized(self, prefix: str) -> Quantized:
        """Binds ``prefix.weight`` and ``prefix.scale`` and returns them as one tensor.

        Looks at an expert's scales (a page fault or two), so experts are asked for when first routed to.
        FaultyCheckpointError for a NaN scale.  spec: number-formats.md section 7.
        """
        self._bind(f"{prefix}.weight")
        self._bind(f"{prefix}.scale")
        self._check_scale(f"{prefix}.scale")
        return replace(self._as_stored(prefix), in_bands=prefix in self._banded)

    def engram_table(self, layer_id: int) -> tuple[Tensor, Tensor]:
        """Binds a layer's table: codes uint8 [rows, width], scale bytes uint8 [rows, width / 32], read row by row.

        The scales are not looked at; whoever gathers rows refuses NaN.
        """
        weight, scale = (f"layers.{layer_id}.engram.embed.{part}" for part in ("weight", "scale"))
        codes, scales = self.tensor(weight), self.tensor(scale)
        for name in (weight, scale):
            if name not in self._held:
                self._shards.advise_random(name)
        return codes, scales

    def engram_ahead(self, layer_id: int) -> RowsAhead | None:
        """Asks for rows of a layer's table before they are gathered; None where the table is in memory."""
        names = [f"layers.{layer_id}.engram.embed.{part}" for part in ("weight", "scale")]
        return None if self._mapped is None else self._mapped.rows(names)

    def claim(self, prefix: str) -> None:
        """Binds every tensor below ``prefix.`` that will be taken later, or by another rank, without touching it.

        CheckpointError when there is none.
        """
        names = [name for name in self.specs if name.startswith(f"{prefix}.")]
        if not names:
            raise CheckpointError(complaint("tensors claimed", f"{prefix}.*", "a prefix of the schema"))
        for name in names:
            self._bind(name)

    def assert_all_bound(self, scope: Scope) -> None:
        """FaultyCheckpointError listing the tensors of a scope that nobody took (rule C4)."""
        unbound = [spec for spec in self.specs.values() if spec.scope is scope and spec.name not in self._bound]
        experts = tuple(spec.name for spec in unbound if spec.expert_id is not None)
        others = tuple(spec.name for spec in unbound if spec.expert_id is None)
        faults = [
            Fault(kind=FaultKind.UNBOUND, message=f"{thing} {listed(names)}", names=names)
            for thing, names in (("experts: unfilled", experts), ("unrouted tensors", others))
            if names
        ]
        if faults:
            raise FaultyCheckpointError(faults)

    def check_unchanged(self) -> None:
        """FaultyCheckpointError when a shard changed since it was opened."""
        self._shards.check_unchanged()

    def nan_scales(self) -> Iterator[Fault]:
        """Rule C3 for the dense weights of the opened scopes, and for all of them in a small checkpoint."""
        scales = [spec for spec in self.specs.values() if spec.layout.is_scale and spec.scope in self.scopes]
        lazy = [spec for spec in scales if spec.subsystem in LAZY_SCALES]
        if sum(spec.num_bytes for spec in lazy) <= MOST_BYTES_AT_OPEN:
            self._checked.update(spec.name for spec in lazy)
            lazy = []
        left_out = {spec.name for spec in lazy}
        for spec in scales:
            if spec.name not in left_out:
                yield from self._nan_scale(spec.name)

    def _as_stored(self, prefix: str) -> Quantized:
        """A scaled weight, in memory or mapped."""
        spec = self.specs[f"{prefix}.weight"]
        packed = spec.dtype is StoredDtype.I8
        return Quantized(
            codes=self._bytes(spec.name),
            scales=self._bytes(f"{prefix}.scale"),
            element=ElementFormat.E2M1 if packed else ElementFormat.E4M3,
            scale=ScaleFormat.E8M0,
            group=(1, TILE) if spec.subsystem in LAZY_SCALES else (TILE, TILE),
        )

    def _bytes(self, name: str) -> Tensor:
        held = self._held.get(name)
        return self._shards.tensor(name) if held is None else held

    def _bind(self, name: str) -> None:
        spec = self.specs.get(name)
        if spec is None:
            raise CheckpointError(complaint("tensor", name, "a name of the schema"))
        if spec.scope not in self.scopes:
            opened = ", ".join(sorted(scope.value for scope in self.scopes))
            raise CheckpointError(complaint(f"scope of {name}", spec.scope.value, f"an opened scope ({opened})"))
        self._bound.add(name)

    def _check_scale(self, name: str) -> None:
        if self.specs[name].subsystem not in LAZY_SCALES or name in self._checked:
            return
        faults = list(self._nan_scale(name))
        if faults:
            raise FaultyCheckpointError(faults)
        self._checked.add(name)

    def _nan_scale(self, name: str) -> Iterator[Fault]:
        flat = self._shards.find_byte(name, NAN_SCALE)
        if flat is not None:
            width = self.specs[name].shape[1]
            index = list(divmod(flat, width))
            message = f"{name}: scale byte {NAN_SCALE} (NaN) at {index}"
            yield Fault(kind=FaultKind.SCALE, message=message, names=(name,))


@collector_paused()
def open_checkpoint(directory: Path, scopes: Collection[Scope] = tuple(Scope)) -> Checkpoint:
    """The checkpoint in a directory, of which the given scopes will be loaded.

    All scopes are compared with the schema, whichever are loaded.  ConfigError for a config this engine refuses,
    FaultyCheckpointError with every fault of the files.
    """
    files, faults = survey(directory)
    if any(fault.kind is FaultKind.DIRECTORY for fault in faults):
        raise FaultyCheckpointError(faults, f"checkpoint {directory}")
    config = read_config(directory)
    specs = schema(config)
    faults += disagreement(specs, files).faults()
    if faults:
        raise FaultyCheckpointError(faults, f"checkpoint {directory}")
    checkpoint = Checkpoint(config, specs, MappedShards(files), scopes)
    faults += checkpoint.nan_scales()
    if faults:
        raise FaultyCheckpointError(faults, f"checkpoint {directory}")
    return checkpoint
