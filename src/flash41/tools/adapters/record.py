"""What is known of another engine: which of its arrays is which point of a trace, and by what it differs.

    point   L{layer}.attn.in                        our name, without `trace/`
    name    model.layers.{layer}.attn.input         its key in a file of theirs
    place   model.layers.{layer}.attn input x       where a hook stands, see below
    change  SAME                                    how our array becomes theirs

A name holds the placeholders of its point: ``{layer}``, ``{stage}`` of the draft stages, ``{block}`` of the image
encoder.  ``{before}`` is the layer before `layer`, for engines that show the end of a block and not the beginning of
the next.

How a place is written stands in `places`; in it, ``{last}`` is the number of the last layer.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from flash41.errors import RequestError, complaint
from flash41.tools.adapters.changes import Array, Change

LOGITS = "logits"
"""Has this name everywhere."""

PLACEHOLDER = re.compile(r"\\\{(layer|before|stage|block)\\\}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Hook:
    """One point of ours that another engine shows."""

    point: str
    """Name of the point, with placeholders."""
    name: str
    """Name of the array in their files, with the same placeholders."""
    place: str
    """Where a hook stands."""
    change: Change
    """How our array becomes theirs."""
    order_of: str | None = None
    """The point, with placeholders, in whose order their array is listed (weights beside expert ids); None: its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """One engine as of one release."""

    engine: str
    """Its name on the command line."""
    version: str
    """The release the facts were taken from."""
    hooks: tuple[Hook, ...]
    """Every point it shows; points and names occur once."""
    notes: tuple[str, ...]
    """By what its numbers differ from profile vendor, and the profile or option of ours that comes closest."""


def to_theirs(adapter: Adapter, arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Arrays by point as arrays by their names; points the engine does not show are left out, `logits` stays."""
    theirs = {LOGITS: arrays[LOGITS]} if LOGITS in arrays else {}
    for point, array in arrays.items():
        for hook, values in matches(adapter, point, "point"):
            theirs[_filled(hook.name, values)] = hook.change.theirs(array)
    return theirs


def to_ours(adapter: Adapter, arrays: Mapping[str, Array]) -> tuple[dict[str, Array], tuple[str, ...]]:
    """Arrays by their names as arrays by point; and, ascending, the names of those left out.

    Left out is what is none of theirs, and a list in the order of another one that is not among the arrays.
    RequestError listing every array whose shape is not the one its name promises.
    """
    ours = {LOGITS: arrays[LOGITS]} if LOGITS in arrays else {}
    left_out, faults = set(arrays) - set(ours), []
    for name, array in arrays.items():
        for hook, values in matches(adapter, name, "name"):
            leader = _leader(adapter, hook, values)
            if leader is not None and leader not in arrays:
                continue
            try:
                laid_out = hook.change.ours(array)
                ours[_filled(hook.point, values)] = laid_out if leader is None else _reordered(laid_out, arrays[leader])
            except RequestError as error:
                faults.append(f"{name}: {error}")
            left_out.discard(name)
    if faults:
        raise RequestError("\n".join(faults))
    return ours, tuple(sorted(left_out))


def _leader(adapter: Adapter, hook: Hook, values: Mapping[str, int]) -> str | None:
    """Their name of the ids in whose order a list stands."""
    return next((_filled(other.name, values) for other in adapter.hooks if other.point == hook.order_of), None)


def _reordered(array: Array, ids: Array) -> Array:
    """Entries beside `ids`, in the ascending order of these, which is ours."""
    if ids.shape != array.shape:
        raise RequestError(complaint("shape", array.shape, f"{ids.shape}, one entry beside each of its ids"))
    return np.take_along_axis(array, np.argsort(ids, axis=-1, kind="stable"), axis=-1)


def matches(adapter: Adapter, text: str, side: str) -> Iterator[tuple[Hook, dict[str, int]]]:
    """The hooks whose name or point (`side`) is `text`, with the numbers of its placeholders."""
    for hook in adapter.hooks:
        found = re.fullmatch(PLACEHOLDER.sub(r"(?P<\1>\\d+)", re.escape(getattr(hook, side))), text)
        if found is None:
            continue
        values = {word: int(number) for word, number in found.groupdict().items()}
        if "before" in values:
            values["layer"] = values["before"] + 1
        elif "layer" in values:
            values["before"] = values["layer"] - 1
        if "{before}" not in hook.name or values["before"] >= 0:
            yield hook, values


def _filled(template: str, values: Mapping[str, int]) -> str:
    return template.format(**values)
