"""One line of the drawn forward: what is done, with which weights, and the shape that comes out.

rail    one      a single row per token
        streams  the residual, as many lines as streams
        branch   a sub-layer beside the residual
"""

from collections.abc import Sequence

from flash41.tools.anatomy_page.tensors import Tensors, Weight

Step = dict[str, object]


class Steps:
    """Collects the steps of one block, whose tensors share a prefix."""

    def __init__(self, tensors: Tensors, prefix: str = "") -> None:
        self._tensors = tensors
        self._prefix = prefix
        self.steps: list[Step] = []

    def add(
        self,
        name: str,
        does: str,
        out: Sequence[object],
        dtype: str,
        *,
        rail: str = "branch",
        weights: Sequence[str] = (),
        part: str = "",
    ) -> None:
        """One more step; `out` holds numbers, or `T` and the like; `part` names a mechanism, for its colour."""
        found: list[Weight] = self._tensors.weights(self._prefix, weights)
        self.steps.append(
            {
                "name": name,
                "does": does,
                "out": list(out),
                "dtype": dtype,
                "rail": rail,
                "weights": found,
                "part": part,
            }
        )
