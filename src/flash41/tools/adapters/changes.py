"""How an array of ours becomes the one another engine shows at the same place: named, each with its way back.

ours(theirs(x)) equals x for every array of a trace.  theirs(ours(y)) need not equal y: an engine that lists experts
in the order of their scores has thrown nothing away, but the order is not ours to restore.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flash41.errors import RequestError, complaint

Array = NDArray[Any]

STREAMS = 4
"""Residual streams of the released model; an array that lists them in one axis does not say how many there are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One way of laying out the same numbers."""

    name: str
    """What their layout has that ours has not; a few words."""
    theirs: Callable[[Array], Array]
    """Our array in their layout."""
    ours: Callable[[Array], Array]
    """Their array in our layout; RequestError for a shape that is not theirs."""
    num_streams: int | None = None
    """How many residual streams the change takes for granted; None: any number."""


def then(first: Change, second: Change) -> Change:
    """`first`, and `second` applied to its result."""
    return Change(
        name=f"{first.name}; {second.name}",
        theirs=lambda array: second.theirs(first.theirs(array)),
        ours=lambda array: first.ours(second.ours(array)),
        num_streams=first.num_streams or second.num_streams,
    )


def _flatten(array: Array) -> Array:
    if array.ndim < 2 or array.shape[-2] != STREAMS:
        raise RequestError(complaint("shape of streams", array.shape, f"[..., {STREAMS}, width]"))
    return array.reshape(*array.shape[:-2], -1)


def _unflatten(array: Array) -> Array:
    if not array.ndim or array.shape[-1] % STREAMS:
        raise RequestError(complaint("shape of flattened streams", array.shape, f"[..., {STREAMS} * width]"))
    return array.reshape(*array.shape[:-1], STREAMS, -1)


def _without_axis(array: Array, axis: int, thing: str) -> Array:
    if array.shape[axis:][:1] != (1,):
        raise RequestError(complaint(f"shape with {thing}", array.shape, f"1 on axis {axis}"))
    return np.squeeze(array, axis)


def _sorted_selection(array: Array) -> Array:
    """Ascending, what is -1 behind everything else."""
    far = np.iinfo(array.dtype).max
    ascending = np.sort(np.where(array < 0, far, array), axis=-1)
    return np.where(ascending == far, -1, ascending).astype(array.dtype)


SAME = Change(name="same", theirs=lambda array: array, ours=lambda array: array)
BATCHED = Change(
    name="leading axis for one sequence",
    theirs=lambda array: array[None],
    ours=lambda array: _without_axis(array, 0, "one sequence"),
)
COLUMN = Change(
    name="trailing axis of one",
    theirs=lambda array: array[..., None],
    ours=lambda array: _without_axis(array, -1, "a trailing axis"),
)
ONE_HEAD = Change(
    name="axis for the one KV head",
    theirs=lambda array: array[:, None],
    ours=lambda array: _without_axis(array, 1, "one KV head"),
)
FLATTENED = Change(name=f"{STREAMS} streams in one axis", theirs=_flatten, ours=_unflatten, num_streams=STREAMS)
UNSORTED = Change(
    name="in any order",
    theirs=lambda array: array,
    ours=lambda array: np.sort(array, axis=-1),
)
SELECTION = Change(
    name="selected rows in any order, -1 anywhere",
    theirs=lambda array: array,
    ours=_sorted_selection,
)
