"""Whether the headers hold exactly the schema: missing, unexpected and wrong tensors, all at once (rule C1).

spec: config.md section 4.9, checkpoint.md section 7.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from flash41.checkpoint.directory import CheckpointFiles
from flash41.checkpoint.faults import Fault, FaultKind, listed
from flash41.checkpoint.stored import StoredDtype, TensorSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Disagreement:
    """Where the files differ from the schema; empty when they agree."""

    missing: tuple[str, ...]
    """In the schema, in no shard that could be read."""
    unexpected: tuple[str, ...]
    """In a shard, not in the schema."""
    wrong: tuple[str, ...]
    """``name dtype [shape]: got ..., expected ...`` of tensors with another dtype or shape."""

    def faults(self) -> list[Fault]:
        """None, or one fault with all three lists."""
        parts = [
            f"{word} {listed(names)}"
            for word, names in (("missing", self.missing), ("unexpected", self.unexpected), ("wrong", self.wrong))
            if names
        ]
        if not parts:
            return []
        names = (*self.missing, *self.unexpected, *self.wrong)
        return [Fault(kind=FaultKind.SCHEMA, message=f"checkpoint: {'; '.join(parts)}", names=names)]


def disagreement(expected: Mapping[str, TensorSpec], files: CheckpointFiles) -> Disagreement:
    """Compares names, dtypes and shapes; tensors of shards that could not be read count as neither.

    A shard that cannot be read is a fault of its own, which its thousand missing tensors would only bury.
    """
    missing = [name for name in expected if name not in files.shard_of and name not in files.unreadable]
    unexpected: list[str] = []
    wrong: list[str] = []
    for header in files.shards.values():
        for name, entry in header.tensors.items():
            spec = expected.get(name)
            if spec is None:
                unexpected.append(name)
            elif entry.dtype is not spec.dtype or entry.shape != spec.shape:
                got, wanted = _described(entry.dtype, entry.shape), _described(spec.dtype, spec.shape)
                wrong.append(f"{name}: got {got}, expected {wanted}")
    return Disagreement(missing=tuple(missing), unexpected=tuple(unexpected), wrong=tuple(wrong))


def _described(dtype: StoredDtype, shape: tuple[int, ...]) -> str:
    return f"{dtype.value} {list(shape)}"
