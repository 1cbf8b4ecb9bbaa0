"""What one rank holds of a model's weights, by how often it is read.

    dense       read for every token: attention, shared experts, routers, norms, mixing, head
    embedding   one row per token
    experts     routed experts, whole, by id; a token reads a few of them
    drafts      the same two for the draft stages, vision, and Engram tables, which stay on the host
    widened     norm weights, copied to FP32 when the model is built

Rules of division are those of `parallel.sharding`, with as many expert-parallel as tensor-parallel ranks.  Bytes are
the stored ones, as weights are used as they lie.  Integers only.  spec: checkpoint.md sections 5 and 6.
"""

from collections import Counter
from dataclasses import dataclass
from math import prod

from flash41.checkpoint.schema import kinds
from flash41.checkpoint.stored import Scope, StoredDtype, Subsystem, TensorSpec
from flash41.config.architecture import ModelConfig
from flash41.parallel.sharding import Cut, ParallelCounts, cut_of

WIDE_BYTES = 4
"""An FP32 element."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankWeights:
    """Bytes of one rank; parts that are not loaded are zero."""

    dense_bytes: int
    """Backbone weights that every token reads, Engram projections among them."""
    head_bytes: int
    """Of these, the head, which drafts read once more."""
    embedding_bytes: int
    """Tables of which a token reads one row: the embedding, and that of the drafts' Markov head."""
    expert_bytes: int
    """Routed experts of the backbone."""
    draft_dense_bytes: int
    """Draft stages without their routed experts."""
    draft_expert_bytes: int
    """Routed experts of the draft stages."""
    vision_bytes: int
    """Vision tower, aligner and image vectors."""
    widened_bytes: int
    """FP32 copies of norm weights."""
    table_bytes: int
    """Engram tables, whole, on the host."""

    @property
    def loaded_bytes(self) -> int:
        """Everything but the tables."""
        return self.always_bytes + self.embedding_bytes + self.expert_bytes + self.draft_expert_bytes

    @property
    def always_bytes(self) -> int:
        """What no token can do without: a machine that reads it from the disk again and again only stands still."""
        return self.dense_bytes + self.draft_dense_bytes + self.vision_bytes + self.widened_bytes

    @property
    def sometimes_bytes(self) -> int:
        """What is read in parts: experts and embedding."""
        return self.expert_bytes + self.draft_expert_bytes + self.embedding_bytes


def rank_weights(config: ModelConfig, world: int, *, drafts: bool, images: bool) -> RankWeights:
    """What each of `world` ranks holds; all hold the same.  The sizes must admit the division (rules P2 to P4)."""
    scopes = {Scope.BACKBONE} | ({Scope.DRAFT} if drafts else set()) | ({Scope.VISION} if images else set())
    held: Counter[tuple[Scope, str]] = Counter()
    head = widened = 0
    for spec, count in kinds(config):
        if spec.scope in scopes:
            num_bytes = _rank_bytes(spec, count, world)
            held[spec.scope, _reading(spec)] += num_bytes
            head += num_bytes if spec.subsystem is Subsystem.HEAD else 0
            widened += WIDE_BYTES * prod(spec.shape) if _is_norm(spec) else 0
    return RankWeights(
        dense_bytes=held[Scope.BACKBONE, "dense"],
        head_bytes=head,
        embedding_bytes=held[Scope.BACKBONE, "row"] + held[Scope.DRAFT, "row"],
        expert_bytes=held[Scope.BACKBONE, "experts"],
        draft_dense_bytes=held[Scope.DRAFT, "dense"],
        draft_expert_bytes=held[Scope.DRAFT, "experts"],
        vision_bytes=held[Scope.VISION, "dense"],
        widened_bytes=widened,
        table_bytes=held[Scope.BACKBONE, "host"],
    )


def parallel_counts(config: ModelConfig) -> ParallelCounts:
    """The numbers of a model that ranks divide."""
    return ParallelCounts(
        num_attention_heads=config.attention.num_heads,
        index_n_heads=config.indexer.num_heads,
        o_groups=config.attention.o_groups,
        moe_intermediate_size=config.moe.intermediate_size,
        vocab_size=config.vocab_size,
        n_routed_experts=config.moe.num_experts,
        dspark_n_routed_experts=config.dspark.num_experts,
        head_dim=config.attention.head_dim,
        o_lora_rank=config.attention.o_lora_rank,
    )


def _rank_bytes(spec: TensorSpec, count: int, world: int) -> int:
    whole = count * spec.num_bytes
    cut = cut_of(spec.name, expert_parallel=True)
    # The host keeps the tables whole, whoever reads them.
    return whole if cut in (Cut.REPLICATED, Cut.ROWS) else whole // world


def _reading(spec: TensorSpec) -> str:
    """How much of a tensor a token reads."""
    if spec.subsystem is Subsystem.ROUTED:
        return "experts"
    if spec.subsystem is Subsystem.ENGRAM_TABLE:
        return "host"
    return "row" if spec.name.endswith(".markov_head.embed.weight") or spec.name == "embed.weight" else "dense"


def _is_norm(spec: TensorSpec) -> bool:
    """Whether the model copies a tensor to FP32: the weights of all RMS norms, alone of their kind in being vectors."""
    module, _, leaf = spec.name.rpartition(".")
    return leaf == "weight" and len(spec.shape) == 1 and spec.dtype is StoredDtype.BF16 and "norm" in module
