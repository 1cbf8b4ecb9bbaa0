"""How much of a checkpoint is kept in memory, and which tensors that concerns.  Integers only.

    whole     everything that is loaded, read once at the start
    dense     what every step reads: attention, shared experts, head, routers; rows and experts stay in the files
    hot       some of the routed experts of each layer, those chosen most often

Rows (the embedding, n-gram tables) are read one at a time: of those the system's page cache is the best keeper.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from flash41.checkpoint.schema import kinds
from flash41.checkpoint.stored import Scope, Subsystem, TensorSpec
from flash41.config.architecture import ModelConfig

ROWS = (Subsystem.EMBED, Subsystem.ENGRAM_TABLE)
"""Tensors of which a step reads single rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Residence:
    """What is kept in memory."""

    whole: bool = False
    """Everything."""
    dense: bool = False
    """What every step reads."""
    hot_bytes: int = 0
    """For routed experts, in equal parts for every layer that has any."""

    @property
    def is_mapped(self) -> bool:
        """Whether experts are read from the files."""
        return not self.whole


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightSizes:
    """Bytes of the weights that a run loads."""

    total_bytes: int
    dense_bytes: int
    """Read in every step."""
    expert_bytes: int
    """All routed experts."""
    one_expert_bytes: int
    """The largest one; 0 without any."""
    num_expert_layers: int
    """Layers and draft stages with routed experts."""


def is_dense(spec: TensorSpec) -> bool:
    """Whether every step reads it; the vision tower is read where there is a picture."""
    return spec.expert_id is None and spec.subsystem not in ROWS and spec.scope is not Scope.VISION


def weight_sizes(config: ModelConfig, scopes: Iterable[Scope]) -> WeightSizes:
    """Sizes of the scopes that are loaded."""
    opened = frozenset(scopes)
    loaded = [(spec, count) for spec, count in kinds(config) if spec.scope in opened]
    experts = [(spec, count) for spec, count in loaded if spec.expert_id is not None]
    one_expert: Counter[tuple[Scope, int | None]] = Counter()
    for spec, _ in experts:
        one_expert[spec.scope, spec.block_id] += spec.num_bytes
    return WeightSizes(
        total_bytes=sum(count * spec.num_bytes for spec, count in loaded),
        dense_bytes=sum(count * spec.num_bytes for spec, count in loaded if is_dense(spec)),
        expert_bytes=sum(count * spec.num_bytes for spec, count in experts),
        one_expert_bytes=max(one_expert.values(), default=0),
        num_expert_layers=len(one_expert),
    )
