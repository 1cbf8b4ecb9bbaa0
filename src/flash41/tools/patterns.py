"""The tensors of a schema by the pattern of their names, as a checkpoint's table of tensors is written.

    layers.{L}.ffn.experts.{e}.w1.weight   [2304, 2560] I8   15,360 of them        one row for 40 layers x 384 experts

Tensors share a row where pattern, shape and format are equal, so a pattern whose shapes differ (the Engram tables) has
several.  Integers only.  spec: checkpoint.md sections 1 to 3.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from flash41.checkpoint.stored import Layout, Scope, TensorSpec

PREFIXES = {Scope.BACKBONE: ("layers.", "{L}"), Scope.DRAFT: ("mtp.", "{i}"), Scope.VISION: ("vision.blocks.", "{b}")}
"""What stands before the number of a block, and the letter in its place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PatternRow:
    """Tensors of one pattern, shape and format."""

    pattern: str
    """Name with {L}, {i}, {b} and {e} for layer, stage, vision block and expert."""
    shape: tuple[int, ...]
    """As stored."""
    dtype: str
    """Format of an element, as a header spells it."""
    cut: str
    """How ranks may divide it, in the notation of `CutRule`."""
    num_tensors: int
    """Tensors of this kind."""
    num_parameters: int
    """Weight elements of all of them."""
    num_bytes: int
    """Bytes of all of them."""

    def to_dict(self) -> dict[str, object]:
        """JSON values."""
        return {**asdict(self), "shape": list(self.shape)}


def patterns(counted: Iterable[tuple[TensorSpec, int]]) -> tuple[PatternRow, ...]:
    """Rows of the kinds of a schema, in its order."""
    counts: Counter[tuple[str, Layout]] = Counter()
    for spec, count in counted:
        counts[_pattern(spec), spec.layout] += count
    return tuple(_row(pattern, layout, count) for (pattern, layout), count in counts.items())


def _pattern(spec: TensorSpec) -> str:
    if spec.block_id is None:
        return spec.name
    start, letter = PREFIXES[spec.scope]
    name = spec.name.replace(f"{start}{spec.block_id}.", f"{start}{letter}.", 1)
    if spec.expert_id is not None:
        name = name.replace(f".experts.{spec.expert_id}.", ".experts.{e}.", 1)
    return name


def _row(pattern: str, layout: Layout, count: int) -> PatternRow:
    return PatternRow(
        pattern=pattern,
        shape=layout.shape,
        dtype=layout.dtype.value,
        cut=layout.cut.value,
        num_tensors=count,
        num_parameters=count * layout.num_parameters,
        num_bytes=count * layout.num_bytes,
    )
