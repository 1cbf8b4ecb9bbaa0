"""What one rank of a tensor-parallel group holds under the reference's rules.  Integers only.

Routed experts whole, by id; heads, output groups and vocabulary cut; index heads cut, shared experts replicated (this
project does it the other way round for both, see `parallel.sharding`).  spec: checkpoint.md section 6.
"""

from dataclasses import dataclass

from flash41.checkpoint.schema import schema
from flash41.checkpoint.stored import CutRule, Scope, Subsystem, TensorSpec
from flash41.config.architecture import ModelConfig
from flash41.parallel.sharding import check_parallel
from flash41.planning.weights import parallel_counts

CUT_AXES = {
    CutRule.AXIS0: 0,
    CutRule.AXIS1: 1,
    CutRule.INDEX_HEADS: 0,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSizes:
    """What one rank holds, drafts and vision included."""

    num_tensors: int
    """Without Engram tables and the scales of `wo_a`, which is dequantised."""
    num_replicated: int
    """Of these, held whole by every rank."""
    backbone_bytes: int
    """Without Engram tables; `wo_a` in BF16."""
    engram_bytes: int
    """Its range of every Engram table, the last rank padded."""


def rank_sizes(config: ModelConfig, world: int) -> RankSizes:
    """Sizes of the first of `world` ranks; all hold the same.

    ConfigError listing every broken rule of P1 to P4.
    """
    check_parallel(parallel_counts(config), world, world)
    specs = list(schema(config).values())
    held = [spec for spec in specs if _is_held(spec, config, world)]
    tables = (spec for spec in specs if spec.subsystem is Subsystem.ENGRAM_TABLE)
    return RankSizes(
        num_tensors=len(held),
        num_replicated=sum(spec.expert_id is None and spec.cut not in CUT_AXES for spec in held),
        backbone_bytes=sum(_loaded_bytes(spec) // (world if spec.cut in CUT_AXES else 1) for spec in held),
        engram_bytes=sum(-(-spec.shape[0] // world) * spec.shape[1] * spec.dtype.element_bytes for spec in tables),
    )


def _num_experts(spec: TensorSpec, config: ModelConfig) -> int:
    return config.dspark.num_experts if spec.scope is Scope.DRAFT else config.moe.num_experts


def _is_held(spec: TensorSpec, config: ModelConfig, world: int) -> bool:
    if spec.subsystem is Subsystem.ENGRAM_TABLE or spec.name.endswith(".attn.wo_a.scale"):
        return False
    return spec.expert_id is None or spec.expert_id < _num_experts(spec, config) // world


def _loaded_bytes(spec: TensorSpec) -> int:
    return spec.num_bytes * (2 if spec.name.endswith(".attn.wo_a.weight") else 1)
