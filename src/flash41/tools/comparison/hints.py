"""Known conventions that explain a difference, and the option under which flash41 follows them.

Most read what the numbers themselves show (`fingerprint`); the others recognise where and how widely the first
differences appear.  A hint is a suggestion to trace again and compare again, never a verdict.
spec: README.md sections 6 and 7, attention.md sections 11.2, 11.7 and 13, cache.md section 9.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flash41.tools.comparison.dataflow import place
from flash41.tools.comparison.files import Aligned
from flash41.tools.comparison.fingerprint import Fingerprint, profiles_like
from flash41.tools.comparison.judge import PointResult, Status, row_errors

Array = NDArray[Any]

QUANTISED_OUTPUTS = ("attn.q", "attn.window_row", "index.q", "attn.out", "ffn.out")
"""Outputs of linears whose input is rounded to FP8."""
ROUNDING_ERRORS = (2.0**-8, 0.12)
"""Median errors that one rounding more or less of activations makes."""
FAR_OFF = 0.1
"""Scores of other keys; the demo's BF16 chain moves scores by a hundredth."""
NEARLY_ALL = 0.9
MOST_OVER_MEDIAN = 4.0
"""A rounding moves all rows alike; a mask or a missing term moves some much more."""


@dataclass(frozen=True, slots=True)
class Hint:
    """A convention that would explain what was found."""

    convention: str
    """What the second trace seems to do."""
    evidence: str
    remedy: str
    """How to trace with it."""


def hints(aligned: Aligned, results: Sequence[PointResult], ours: Fingerprint, theirs: Fingerprint) -> list[Hint]:
    """Every known convention that fits."""
    by_point = {result.point: result for result in results}
    found = [*_formats(ours, theirs), *_replay(aligned), *_slots(aligned, by_point)]
    if not any(hint.convention.startswith("FP32") for hint in found):
        found += _activations(results, ours, theirs)
    return found


def _formats(ours: Fingerprint, theirs: Fingerprint) -> Iterator[Hint]:
    names = {
        "stores": "results between operations",
        "window": "window rows",
        "main": "compressed rows",
        "key": "index keys",
        "scores": "index scores",
    }
    changed = [
        name
        for name in names
        if None not in (getattr(ours, name), getattr(theirs, name)) and getattr(ours, name) != getattr(theirs, name)
    ]
    if not changed:
        return
    evidence = "; ".join(f"{names[name]}: {getattr(ours, name)} against {getattr(theirs, name)}" for name in changed)
    profiles = profiles_like(theirs)
    if profiles:
        options = " or ".join(f"--profile {name}" for name in profiles)
        yield Hint(_convention(changed, theirs), evidence, f"trace with {options}")
    else:
        yield Hint(
            _convention(changed, theirs), evidence, "no profile rounds like that; compare with --profile fp32 too"
        )


def _convention(changed: Sequence[str], theirs: Fingerprint) -> str:
    if theirs.stores == "fp32" and "stores" in changed:
        return "FP32 between operations, no BF16 stores"
    if changed == ["key"] and theirs.key == "fp8/row":
        return "FP8 index plane"
    if changed == ["scores"] and theirs.scores == "bf16":
        return "index scores in the official demo's BF16 chain"
    return "other roundings of stored values"


def _replay(aligned: Aligned) -> Iterator[Hint]:
    short = {point: pair.skipped_rows for point, pair in aligned.pairs.items() if pair.skipped_rows}
    layers = [place(point).layer for point in short]
    if short and all(layer is not None for layer in layers):
        first = min(layer for layer in layers if layer is not None)
        yield Hint(
            "bounded replay: late layers read only the end of a prompt",
            f"from layer {first} on the last {aligned.num_tokens - max(short.values())} rows only",
            "compare rows behind the replayed window, or turn the other engine's decoder replay off",
        )


def _slots(aligned: Aligned, results: Mapping[str, PointResult]) -> Iterator[Hint]:
    """The official demo scores the plane published last on single-token steps that leave a group open."""
    layers = []
    for point, pair in aligned.pairs.items():
        where = place(point)
        result = results[point]
        if where.kind != "index.scores" or result.status is not Status.DIVERGES:
            continue
        inputs = [results.get(f"L{where.layer}.{name}") for name in ("index.q", "index.weights", "index.key")]
        if any(one is None or one.status is Status.DIVERGES for one in inputs):
            continue
        key = aligned.pairs[f"L{where.layer}.index.key"]
        wrong = np.flatnonzero(row_errors(pair.ours, pair.theirs) > FAR_OFF) + pair.skipped_rows
        if len(key.ours) == aligned.num_tokens // 2 and len(wrong) and not np.any(wrong % 2):
            layers.append(where.layer)
    if layers:
        yield Hint(
            "the official demo's index slots: an open pair scores the keys published last",
            f"scores of layers {layers} differ at even positions only, their queries, weights and keys do not",
            "trace with --profile demo and --chunks as the other engine ran, or compare at odd positions",
        )


def _activations(results: Sequence[PointResult], ours: Fingerprint, theirs: Fingerprint) -> Iterator[Hint]:
    first = next((result for result in results if result.status is Status.DIVERGES), None)
    if first is None or place(first.point).kind not in QUANTISED_OUTPUTS or ours.window != theirs.window:
        return
    low, high = ROUNDING_ERRORS
    is_even = first.worst <= MOST_OVER_MEDIAN * first.median and first.num_beyond >= NEARLY_ALL * first.num_rows
    if not low <= first.median <= high or not is_even:
        return
    evidence = f"{first.point} is off by {first.median:.1%} in nearly every row, and what it reads is not"
    if place(first.point).kind == "attn.out":
        yield Hint("wo_a in FP8 with rounded input", evidence, "trace with --profile atom")
    elif place(first.point).kind == "ffn.out":
        convention = "routing weight behind w2, or activations of experts rounded otherwise"
        yield Hint(convention, evidence, "trace with --profile fp32 too: where a weight enters is the same there")
    else:
        yield Hint(
            "activations of linears rounded otherwise (none, per 128, or FP4)",
            evidence,
            "trace with --profile fp32 too",
        )
