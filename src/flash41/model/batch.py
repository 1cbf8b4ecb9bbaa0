"""The records a forward is made of.

`ForwardBatch` is staged by the runner and is, with a `BatchView` of the caches, all the backbone is given.  `Step` is
what the backbone derives from it once, for all layers.  `Selections` carries what scoring layers leave to later layers
of the same forward; it never outlives it, so a selection of another step cannot be used by mistake.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from flash41.cache.views import BatchView


class Probe(Protocol):
    """Receives named intermediate results; the names are those of the golden manifest."""

    active: bool
    """Whether anything is recorded; guards work that only a trace needs."""

    def __call__(self, point: str, value: Tensor) -> None:
        """Takes one tensor, whose first dim is the row of the forward (or the closed group) it belongs to."""
        ...


class Silent:
    """The probe that records nothing."""

    active = False

    def __call__(self, point: str, value: Tensor) -> None:
        """Does nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngramRows:
    """What one Engram layer adds to a batch, gathered on the host before the forward."""

    row_ids: Tensor
    """int64 [T, columns]: absolute table rows."""
    values: Tensor
    """[T, columns * head_dim] dequantised rows, BF16 (FP32 in profile fp32)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardBatch:
    """T rows of any number of requests, span after span."""

    ids: Tensor
    """int64 [T] token ids."""
    positions: Tensor
    """int64 [T] absolute positions."""
    logit_rows: Tensor
    """int64 [n] rows whose logits are wanted."""
    engram: Mapping[int, EngramRows]
    """Rows for each Engram layer."""
    image_mask: Tensor | None = None
    """bool [T], true on every position of an image span; None for text."""
    image_rows: Tensor | None = None
    """[image positions, D]: what replaces the embedding on the masked rows, in their order; None for text."""


Angles = tuple[Tensor, Tensor]
"""cos and sin, FP32 [rows, rotary pairs]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One forward as the layers see it."""

    batch: ForwardBatch
    view: BatchView
    angles: Mapping[int, Angles]
    """Rotation of each row at its own position, by compress ratio."""
    visible: Mapping[int, Tensor]
    """int64 [T]: compressed rows a query may use, floor((p+1)/ratio), by ratio."""
    most_visible: Mapping[int, int]
    """The largest entry of `visible`, by ratio."""
    probe: Probe


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Compressed rows chosen for every query of the forward by one scorer."""

    rows: Tensor
    """int64 [T, topk], ascending, -1 tail."""
    width: int
    """Columns that hold a row for at least one query."""
    counts: Tensor
    """int64 [T]: rows of each query."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowLists:
    """Which rows each query attends to: its window, then its selection, as numbers into one stack of rows.

    The stack is the layer's window rows followed by the plane it reads.  Layers that share a selection share the lists:
    all layers of a forward see windows of the same shape, and rows of one ratio have the same numbers in each plane.
    """

    index: Tensor
    """int64 [T, n], filled from the left."""
    counts: Tensor
    """int64 [T]: how many are real."""


@dataclass(slots=True)
class Selections:
    """What scorers leave to later layers of the same forward."""

    by_owner: dict[int, Selection] = field(default_factory=dict)
    """Selection of each scorer, by layer id."""
    lists: dict[tuple[int, int], RowLists] = field(default_factory=dict)
    """Row lists of each selection, by the same layer id and the ratio of the planes read."""
    candidates: Tensor | None = None
    """int64 [T, n]: blocks kept by the candidate source, ascending, -1 tail."""
