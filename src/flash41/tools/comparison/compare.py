"""Two traces of one prompt, compared: how far each point is apart, where it begins, and what may explain it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flash41.tools.comparison.dataflow import place
from flash41.tools.comparison.files import Aligned, align
from flash41.tools.comparison.fingerprint import Fingerprint, fingerprint
from flash41.tools.comparison.hints import Hint, hints
from flash41.tools.comparison.judge import BF16_FLOOR, FP32_FLOOR, Judge, PointResult, Status
from flash41.tools.comparison.modules import Module, module_of

Array = NDArray[Any]

GROWTH = ("resid.in", "attn.in", "attn.out", "resid.mid", "ffn.in", "ffn.out")
"""Points whose error is followed from layer to layer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerGrowth:
    """Errors of one layer."""

    layer: int
    errors: Mapping[str, float]
    """Median error of each point of `GROWTH` that both traces have."""
    selections: Mapping[str, int]
    """Rows of selected rows and experts that differ, by verdict."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogitsResult:
    """What the difference does to the next token."""

    top1: float
    """Share of rows with the same best token."""
    worst_margin: float
    """Margin, in the first trace, of the clearest row whose best token differs."""
    median: float
    """Median relative error of the rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """All that was found."""

    num_tokens: int
    points: tuple[PointResult, ...]
    only_ours: tuple[str, ...]
    only_theirs: tuple[str, ...]
    growth: tuple[LayerGrowth, ...]
    logits: LogitsResult | None
    hints: tuple[Hint, ...]
    roundings: tuple[Fingerprint, Fingerprint]

    @property
    def first(self) -> PointResult | None:
        """The first point, in the order of the forward, that what comes in does not explain."""
        return next((one for one in self.points if one.status in (Status.DIVERGES, Status.MISFIT)), None)

    @property
    def module(self) -> Module | None:
        """What computes that point."""
        return None if self.first is None else module_of(self.first.point)


def compare(ours: Mapping[str, Array], theirs: Mapping[str, Array]) -> Comparison:
    """Compares two traces by point; RequestError if they cannot be of one prompt."""
    aligned = align(ours, theirs)
    roundings = fingerprint(ours), fingerprint(theirs)
    floor = FP32_FLOOR if all(one.stores == "fp32" for one in roundings) else BF16_FLOOR
    results = Judge(aligned, floor).results()
    return Comparison(
        num_tokens=aligned.num_tokens,
        points=tuple(results),
        only_ours=aligned.only_ours,
        only_theirs=aligned.only_theirs,
        growth=tuple(_growth(results)),
        logits=_logits(aligned),
        hints=tuple(hints(aligned, results, *roundings)),
        roundings=roundings,
    )


def _growth(results: Sequence[PointResult]) -> list[LayerGrowth]:
    by_layer: dict[int, list[PointResult]] = {}
    for result in results:
        layer = place(result.point).layer
        if layer is not None:
            by_layer.setdefault(layer, []).append(result)
    found = []
    for layer, points in sorted(by_layer.items()):
        counts: dict[str, int] = {}
        for point in points:
            for verdict, count in (point.verdicts or {}).items():
                counts[verdict] = counts.get(verdict, 0) + count
        errors = {place(point.point).kind: point.median for point in points if place(point.point).kind in GROWTH}
        found.append(LayerGrowth(layer=layer, errors=errors, selections=counts))
    return found


def _logits(aligned: Aligned) -> LogitsResult | None:
    pair = aligned.pairs.get("logits")
    if pair is None or pair.ours.ndim != 2 or pair.ours.shape[1] < 2:
        return None
    ours, theirs = pair.ours.astype(np.float64), pair.theirs.astype(np.float64)
    best = np.sort(ours, axis=1)
    missed = ours.argmax(axis=1) != theirs.argmax(axis=1)
    errors = np.linalg.norm(ours - theirs, axis=1) / np.maximum(np.linalg.norm(ours, axis=1), 1e-30)
    return LogitsResult(
        top1=float(1 - missed.mean()),
        worst_margin=float((best[:, -1] - best[:, -2])[missed].max(initial=0.0)),
        median=float(np.median(errors)),
    )
