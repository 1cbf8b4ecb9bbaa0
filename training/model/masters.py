"""FP32 master weights, and what a forward sees of them: the very numbers the shipped checkpoint will hold.

    stored as            forward sees                           by name of the checkpoint
    F8_E4M3 + E8M0       E4M3 in 32 x 32 tiles                  dense
    I8 + E8M0            E2M1 in runs of 32                     routed experts; one master for all experts of a layer
    F8_E4M3 + E8M0       E4M3 in runs of 32, row by row         Engram tables, rounded where they are gathered
    BF16                 BF16                                   norms, embedding, head, compressor, tower
    F32                  itself                                 hyper-connections, sinks, router bias

A new forward takes a new `RoundedWeights`; it stands where the engine's builder expects an opened checkpoint, and its
records stand where `Quantized` records stand.
"""

import re

import torch
from torch import Tensor, nn

from flash41.checkpoint.loader import Checkpoint
from flash41.checkpoint.schema import schema
from flash41.checkpoint.stored import Scope, StoredDtype, TensorSpec
from flash41.config.architecture import ModelConfig
from flash41.numerics.scaled import Quantized
from training.model.initial import initial, look_back
from training.model.straight import bf16, dense_fp8, fp4_32, fp8_32

EXPERT = re.compile(r"(.*\.experts)\.(\d+)\.(w[123])\.weight")


class Masters:
    """Parameters by name: a tensor's own name, or ``….experts.w1`` [experts, N, K] for the experts of a layer."""

    def __init__(self, config: ModelConfig, seed: int) -> None:
        self.config = config
        self.specs = {name: spec for name, spec in schema(config).items() if not spec.layout.is_scale}
        generator = torch.Generator().manual_seed(seed)
        self.parameters: dict[str, nn.Parameter] = {}
        self.scopes: dict[str, Scope] = {}
        for name, spec in self.specs.items():
            key = master_name(name)
            if key in self.parameters:
                continue
            shape = spec.layout.logical_shape
            if key != name:
                shape = (_num_experts(config, spec), *shape)
            self.parameters[key] = nn.Parameter(initial(spec, shape, config.mhc.streams, generator))
            self.scopes[key] = spec.scope
        look_back(self.parameters, config)

    def of(self, *scopes: Scope) -> dict[str, nn.Parameter]:
        """Parameters of the scopes, by name."""
        return {name: value for name, value in self.parameters.items() if self.scopes[name] in scopes}

    def value(self, name: str) -> Tensor:
        """FP32 values of one tensor of the checkpoint."""
        found = EXPERT.fullmatch(name)
        if found is None:
            return self.parameters[name]
        return self.parameters[master_name(name)][int(found[2])]


class RoundedWeight(Quantized):
    """A rounded weight with its gradient, in the place of codes and scales."""

    __slots__ = ("value",)
    value: Tensor

    def __init__(self, value: Tensor) -> None:
        object.__setattr__(self, "value", value)

    @property
    def shape(self) -> tuple[int, ...]:
        """[N, K]."""
        return tuple(self.value.shape)

    def dequantize(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """The rounded values."""
        return self.value.to(dtype)

    def slice_rows(self, first: int, last: int) -> "RoundedWeight":
        """Rows first..last-1."""
        return RoundedWeight(self.value[first:last])


class RoundedWeights(Checkpoint):
    """The masters as one forward sees them, each rounded once; or, to compare, as they are."""

    def __init__(self, masters: Masters, *, is_rounding: bool = True) -> None:
        # Nothing of an opened checkpoint's files is there, and nothing of its bookkeeping is wanted.
        self.config, self.specs, self.scopes = masters.config, masters.specs, frozenset(Scope)
        self._masters = masters
        self._is_rounding = is_rounding
        self._rounded: dict[str, Tensor] = {}
        self._experts: dict[str, tuple[Tensor, ...]] = {}

    def tensor(self, name: str) -> Tensor:
        """An unquantised tensor: BF16 values in FP32, or FP32."""
        return self._once(name, self.specs[name])

    def quantized(self, prefix: str) -> Quantized:
        """A quantised tensor's record."""
        name = f"{prefix}.weight"
        found, key = EXPERT.fullmatch(name), master_name(name)
        rounded = self._once(key, self.specs[name])
        if found is None:
            return RoundedWeight(rounded)
        if key not in self._experts:  # taken apart once: their gradients are put together once
            self._experts[key] = rounded.unbind()
        return RoundedWeight(self._experts[key][int(found[2])])

    def claim(self, prefix: str) -> None:
        """Nothing is counted here."""

    def layer_experts(self, prefix: str) -> None:
        """All experts are in memory."""

    def dense_ahead(self, prefix: str) -> None:
        """So are dense weights."""

    def table_rows(self, layer_id: int, row_ids: Tensor) -> Tensor:
        """FP32 [..., d]: rows of a layer's Engram table, rounded."""
        table = self._masters.parameters[f"layers.{layer_id}.engram.embed.weight"]
        rows = table.index_select(0, row_ids.flatten())
        return (fp8_32(rows) if self._is_rounding else rows).view(*row_ids.shape, -1)

    def _once(self, key: str, spec: TensorSpec) -> Tensor:
        if key not in self._rounded:
            value = self._masters.parameters[key]
            self._rounded[key] = _round(value, spec) if self._is_rounding else value
        return self._rounded[key]


def master_name(name: str) -> str:
    """The parameter that holds a tensor of the checkpoint."""
    found = EXPERT.fullmatch(name)
    return name if found is None else f"{found[1]}.{found[3]}"


def _round(value: Tensor, spec: TensorSpec) -> Tensor:
    if spec.dtype is StoredDtype.I8:
        return fp4_32(value)
    if spec.dtype is StoredDtype.F8_E4M3:
        return dense_fp8(value)
    return bf16(value) if spec.dtype is StoredDtype.BF16 else value


def _num_experts(config: ModelConfig, spec: TensorSpec) -> int:
    return config.dspark.num_experts if spec.scope is Scope.DRAFT else config.moe.num_experts
