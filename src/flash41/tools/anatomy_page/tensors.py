"""Weights as the page shows them: their names, logical shapes and storage, looked up in the schema.

A step of the drawing names tensors by their end; the schema says whether this layer has them and how wide they are, so
no shape is written down twice.  Knows nothing of drawing.
"""

from collections.abc import Mapping, Sequence

from flash41.checkpoint.stored import TensorSpec
from flash41.tools.ledger_rows import Storage, storage

STORAGE_WORDS = {
    Storage.FP4_EXPERTS: "FP4 1x32",
    Storage.FP8_DENSE: "FP8 32x32",
    Storage.FP8_ROWS: "FP8 1x32",
    Storage.BF16: "BF16",
    Storage.FP32: "FP32",
}
"""Format of the elements, and rows by channels that share a scale."""

Weight = dict[str, object]
"""name, shape, storage."""


class Tensors:
    """The weights of one model by name."""

    def __init__(self, specs: Mapping[str, TensorSpec]) -> None:
        self._specs = specs

    def __contains__(self, name: str) -> bool:
        return name in self._specs

    def shape(self, name: str) -> tuple[int, ...]:
        """Logical shape: channels, not bytes."""
        return self._specs[name].layout.logical_shape

    def weights(self, prefix: str, names: Sequence[str]) -> list[Weight]:
        """Those of the named tensors that exist, in the order of the names."""
        found = [(name, self._specs.get(prefix + name)) for name in names]
        return [
            {
                "name": name.removesuffix(".weight"),
                "shape": list(spec.layout.logical_shape),
                "storage": STORAGE_WORDS[storage(spec.layout)],
            }
            for name, spec in found
            if spec is not None
        ]
