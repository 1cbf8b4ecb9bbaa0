"""Two traces, laid beside each other: what both hold, in one shape, and what only one holds.

A file holds `logits` and ``trace/<point>``, or the names of another engine, which its adapter translates.
"""

import zipfile
import zlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flash41.errors import RequestError, combined, complaint
from flash41.tools.adapters.all import ADAPTERS
from flash41.tools.adapters.record import Adapter, matches, to_ours
from flash41.tools.comparison.dataflow import EXACT, SELECTIONS, ordered, place

Array = NDArray[Any]
PREFIX = "trace/"
IDS = "ids"
"""Holds the token ids of a trace, where they were saved."""
EXPECTED = "a file that `flash41 trace` or a hook recipe of docs/comparing.md has written"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One point of two traces, in equal shapes [rows, ...]."""

    point: str
    ours: Array
    theirs: Array
    skipped_rows: int = 0
    """Rows at the front that only the first trace has."""
    note: str = ""
    """What had to be done to lay them beside each other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Aligned:
    """Two traces beside each other."""

    pairs: Mapping[str, Pair]
    """Points of both, in the order of the forward."""
    only_ours: tuple[str, ...]
    only_theirs: tuple[str, ...]
    misfits: Mapping[str, str] = field(default_factory=dict)
    """Points whose shapes cannot be brought together, and why."""
    num_tokens: int


def read_trace(path: Path, wanted: Callable[[str], bool] = lambda _: True) -> dict[str, Array]:
    """Arrays of a trace file by point, `logits` among them; RequestError for a file that is none.

    Of a file with our names only the `wanted` points are read.
    """
    arrays = _arrays(path, lambda name: not name.startswith(PREFIX) or wanted(name.removeprefix(PREFIX)))
    points = {name.removeprefix(PREFIX): array for name, array in arrays.items() if name.startswith(PREFIX)}
    engine = None if points else engine_of(arrays)
    if engine is not None:
        points = to_ours(engine, arrays)[0]
    if "logits" in arrays:
        points["logits"] = arrays["logits"]
    if not points:
        raise RequestError(complaint(f"arrays in {path}", sorted(arrays)[:8], "logits or trace/<point>", EXPECTED))
    wrong = [name for name, array in points.items() if array.dtype.kind not in "fiu" or array.ndim == 0]
    if wrong:
        raise RequestError(complaint(f"arrays in {path}", wrong[:8], "arrays of numbers, one row per token or group"))
    return points


def read_ids(path: Path) -> Array | None:
    """Token ids of a trace file, [tokens]; None where they were not saved."""
    return _arrays(path, lambda name: name == IDS).get(IDS)


def _arrays(path: Path, wanted: Callable[[str], bool]) -> dict[str, Array]:
    try:
        # Opened here: numpy leaves a file open that it cannot read.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            return {name: stored[name] for name in stored.files if wanted(name)}
    except FileNotFoundError:
        raise RequestError(complaint("trace file", str(path), "a file that exists")) from None
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error, AttributeError) as error:
        raise RequestError(complaint(f"trace file {path}", str(error), EXPECTED)) from error


def engine_of(names: Collection[str]) -> Adapter | None:
    """The engine whose names these are: that with the most of them; None if they are nobody's."""
    counts = {
        engine: sum(next(matches(adapter, name, "name"), None) is not None for name in names)
        for engine, adapter in ADAPTERS.items()
    }
    best = max(counts, key=lambda engine: counts[engine])
    return ADAPTERS[best] if counts[best] else None


def num_tokens(points: Mapping[str, Array]) -> int:
    """Tokens of a trace: the most rows of any point of the text model that has one row per token."""
    per_token = [point for point in points if place(point).order[0] in (1, 2, 3)]
    if not per_token:
        raise RequestError(complaint("points of a trace", sorted(points)[:8], "at least one point of the text model"))
    return max(len(points[point]) for point in per_token)


def align(ours: Mapping[str, Array], theirs: Mapping[str, Array]) -> Aligned:
    """Lays two traces beside each other; RequestError if they share nothing or are of other prompts."""
    common = ordered(ours.keys() & theirs.keys())
    if not common:
        faults = [
            complaint("points of the first trace", ordered(ours)[:6], "some that the second has too"),
            complaint("points of the second trace", ordered(theirs)[:6], "some that the first has too"),
        ]
        raise RequestError(combined(faults))
    counts = num_tokens(ours), num_tokens(theirs)
    if counts[0] != counts[1]:
        raise RequestError(complaint("tokens of the traces", counts, "equal numbers", "trace the same token ids"))
    if "embed" in common and not np.array_equal(ours["embed"].reshape(-1), theirs["embed"].reshape(-1)):
        _check_prompt(ours["embed"], theirs["embed"])
    pairs, misfits = {}, {}
    for point in common:
        pair = _pair(point, ours[point], theirs[point])
        if isinstance(pair, str):
            misfits[point] = pair
        else:
            pairs[point] = pair
    return Aligned(
        pairs=pairs,
        only_ours=tuple(ordered(ours.keys() - theirs.keys())),
        only_theirs=tuple(ordered(theirs.keys() - ours.keys())),
        misfits=misfits,
        num_tokens=counts[0],
    )


def _check_prompt(ours: Array, theirs: Array) -> None:
    """Refuses traces whose embeddings have nothing to do with each other: those are of other prompts."""
    a, b = (array.reshape(len(array), -1).astype(np.float64) for array in (ours, theirs))
    if a.shape != b.shape:
        return
    wrong = np.linalg.norm(a - b, axis=1) > 0.5 * np.linalg.norm(a, axis=1)
    if wrong.mean() > 0.5:
        thing = "rows of embed that differ"
        raise RequestError(complaint(thing, int(wrong.sum()), "traces of one prompt", "trace the same token ids"))


def _pair(point: str, ours: Array, theirs: Array) -> Pair | str:
    kind, notes = place(point).kind, []
    if kind in (*SELECTIONS, *EXACT) and (ours.dtype.kind == "f") != (theirs.dtype.kind == "f"):
        return f"dtypes {ours.dtype} and {theirs.dtype}"
    skipped = len(ours) - len(theirs)
    if skipped < 0:
        return f"{len(ours)} rows and {len(theirs)}"
    if skipped:
        notes.append(f"the second has the last {len(theirs)} of {len(ours)} rows only")
        ours = ours[skipped:]
    if kind == "index.scores" or kind in SELECTIONS:
        ours, theirs = _widened(ours, theirs, kind)
    elif ours.shape != theirs.shape:
        if ours.size != theirs.size:
            return f"shapes {ours.shape} and {theirs.shape}"
        notes.append(f"shape {theirs.shape} read as {ours.shape}")
        theirs = theirs.reshape(ours.shape)
    return Pair(point=point, ours=ours, theirs=theirs, skipped_rows=skipped, note="; ".join(notes))


def _widened(ours: Array, theirs: Array, kind: str) -> tuple[Array, Array]:
    """Both in the width of the wider one: more columns are rows nobody sees."""
    width = max(ours.shape[-1], theirs.shape[-1])
    fill = -np.inf if kind == "index.scores" else -1
    pads = [[(0, 0)] * (array.ndim - 1) + [(0, width - array.shape[-1])] for array in (ours, theirs)]
    first, second = (np.pad(array, pad, constant_values=fill) for array, pad in zip((ours, theirs), pads, strict=True))
    return first, second
