"""A trace file as the page needs it: the points it draws, checked against the configuration.

Everything that was kept and is not drawn stays on disk.  Raises RequestError for a file that is no trace, or one of
another model; every misfit is named at once.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from flash41.config.architecture import ModelConfig
from flash41.config.topology import Topology
from flash41.errors import RequestError, combined, complaint
from flash41.tools.comparison.files import Array, num_tokens, read_ids, read_trace
from flash41.tools.points import point_names

LOGITS = "logits"
DRAWN = (
    "resid.in",
    "attn.pre",
    "attn.post",
    "attn.comb",
    "ffn.pre",
    "ffn.post",
    "ffn.comb",
    "router.ids",
    "router.weights",
    "engram.rows",
    "engram.gate",
    "index.scores",
    "index.selected",
    "index.candidates",
)
"""Points of a layer that the page draws."""
DRAFT = ("draft.ids", "draft.confidence")
"""Points of a draft block that it draws."""
MOST_FAULTS = 12
"""Misfits that are named; a trace of another model has hundreds."""

Shape = tuple[int | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceFile:
    """What a file holds of what can be drawn."""

    points: dict[str, Array]
    """By point, `logits` among them; one row per token."""
    ids: Array | None
    """Token ids, where the file has them."""
    num_tokens: int
    """Rows."""
    missing: tuple[str, ...]
    """Points that would be drawn and are not there, one entry for all layers."""


def is_drawn(point: str) -> bool:
    """Whether the page draws a point, by its name without `trace/`."""
    head, _, tail = point.partition(".")
    return point in DRAFT or (head[:1] == "L" and head[1:].isdecimal() and tail in DRAWN)


def read_trace_file(path: Path, config: ModelConfig, topology: Topology) -> TraceFile:
    """The trace at `path` of the model with this configuration."""
    found = read_trace(path, is_drawn)
    points = {point: array for point, array in found.items() if is_drawn(point) or point == LOGITS}
    if not points:
        raise RequestError(
            complaint(f"points in {path}", sorted(found)[:8], "points that are drawn: L<layer>.* or logits")
        )
    count = num_tokens(points)
    faults = _faults(points, count, config)
    if faults:
        more = f"; {len(faults) - MOST_FAULTS} more are not listed" if len(faults) > MOST_FAULTS else ""
        raise RequestError(combined(faults[:MOST_FAULTS]) + more)
    ids = read_ids(path)
    if ids is not None and (ids.shape != (count,) or ids.dtype.kind not in "iu"):
        ids = None
    return TraceFile(points=points, ids=ids, num_tokens=count, missing=_missing(points, config, topology))


def _faults(points: dict[str, Array], count: int, config: ModelConfig) -> list[str]:
    known = point_names(config, draft=True) | {LOGITS}
    faults = []
    for point, array in points.items():
        if point not in known:
            faults.append(complaint(f"point {point}", "an array", "points that a trace of this model has"))
            continue
        expected = _shape(point, count, config)
        fits = array.ndim == len(expected) and all(
            want is None or have == want for have, want in zip(array.shape, expected, strict=True)
        )
        if not fits:
            faults.append(complaint(f"shape of {point}", array.shape, f"{_written(expected)} by the configuration"))
        elif (limit := _limit(point, config)) is not None and not _is_within(array, limit):
            faults.append(complaint(f"values of {point}", "some outside", f"integers below {limit}"))
    return faults


def _shape(point: str, count: int, config: ModelConfig) -> Shape:
    """None where the extent depends on the prompt."""
    streams = config.mhc.streams
    if point == LOGITS:
        return count, config.vocab_size
    if point in DRAFT:
        return (config.dspark.block_size,)
    tail = point.partition(".")[2]
    shapes: dict[str, Shape] = {
        "resid.in": (streams, config.hidden_size),
        "router.ids": (config.moe.num_experts_per_token,),
        "router.weights": (config.moe.num_experts_per_token,),
        "engram.rows": (config.engram.num_columns,),
        "engram.gate": (streams,),
        "index.scores": (None,),
        "index.selected": (None,),
        "index.candidates": (None,),
    }
    mixes: Shape = (streams, streams) if tail.endswith("comb") else (streams,)
    return count, *shapes.get(tail, mixes)


def _limit(point: str, config: ModelConfig) -> int | None:
    tail = point.partition(".")[2]
    if tail == "router.ids":
        return config.moe.num_experts
    if tail in ("index.selected", "index.candidates"):
        return config.max_positions
    if point == "draft.ids":
        return config.vocab_size
    return None


def _is_within(array: Array, limit: int) -> bool:
    return array.dtype.kind in "iu" and (array.size == 0 or (int(np.min(array)) >= -1 and int(np.max(array)) < limit))


def _written(shape: Shape) -> str:
    return "[" + ", ".join("any" if extent is None else str(extent) for extent in shape) + "]"


def _missing(points: dict[str, Array], config: ModelConfig, topology: Topology) -> tuple[str, ...]:
    wanted = [point for point in point_names(config) if is_drawn(point)]
    absent: dict[str, list[int]] = {}
    for point in wanted:
        if point not in points:
            head, _, tail = point.partition(".")
            absent.setdefault(tail, []).append(int(head[1:]))
    found = [f"{tail} of {len(layers)} of {len(topology.layers)} layers" for tail, layers in sorted(absent.items())]
    return (*found, *(() if LOGITS in points else (LOGITS,)))
