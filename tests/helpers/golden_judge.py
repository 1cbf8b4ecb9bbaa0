"""The judge of golden comparisons: how far two runs may differ, and where they must not differ at all.  numpy only.

    T0  integers               equal
    T1  profile fp32           sharp: rejects every mechanism left out
    T2  profile vendor         one BF16 tie that falls differently grows on random weights; the noise of a case is the
                               distance between runs that differ only in their order of summation
    T3  another rounding point one documented rounding differs, so rows move by several percent

A rule returns the list of what is outside; an empty list accepts.  Bounds: tests/golden/README.md.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
CHECKPOINT = GOLDEN / "checkpoints" / "tiny-a"

CLOSE_MARGIN = 0.1
"""A greedy step may turn where the two best tokens are nearer than this."""
MISSED_MARGIN = 0.6
"""A top-1 mismatch of T2 must be nearer than this."""
SHORT_PROMPT = 16
"""Prompts below this length have too few rows for a share of top-1."""
MODULE_EXACT, MODULE_WORST, MODULE_TYPICAL = 2.0**-17, 2.0**-4, 2.0**-7
"""Bounds of `module_faults`."""
LAST_LAYER = 1 << 20
"""Sorts points behind the layers, such as `final.norm`."""
FIRST_LAYERS_RELATIVE = 2.0**-7
"""Agreement of traces before roundings multiply."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """Resolution of a case."""

    rel_median: float
    rel_p90: float
    rel_max: float
    top1: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One golden case: its arrays and what the manifest says about it."""

    name: str
    arrays: Mapping[str, Array]
    declared: Mapping[str, tuple[str, tuple[int, ...]]]
    """dtype and shape of every array."""
    noise: Noise | None
    stable_tokens: int | None
    """Greedy tokens that no order of summation changes."""

    @property
    def ids(self) -> list[int]:
        """Token ids of the prompt."""
        ids: list[int] = self.arrays["ids"].tolist()
        return ids


@dataclass(frozen=True, slots=True, kw_only=True)
class Distance:
    """How far logits are from golden ones."""

    median: float
    p90: float
    within_thousandth: float
    """Share of rows with a relative error up to 1e-3."""
    top1: float
    """Share of rows with the same best token."""
    worst_missed_margin: float
    """Golden margin of the clearest row whose best token differs."""
    num_rows: int
    is_finite: bool


def manifest() -> dict[str, Any]:
    """The manifest of all cases."""
    document: dict[str, Any] = json.loads((GOLDEN / "manifest.json").read_text(encoding="utf-8"))
    return document


def load_case(name: str) -> Case:
    """A case by name, BF16 arrays widened to float32."""
    entry = next(entry for entry in manifest()["cases"] if entry["case"] == name)
    with np.load(GOLDEN / entry["file"], allow_pickle=False) as stored:
        arrays = {key: stored[key] for key in stored.files}
    declared = {key: (dtype, tuple(shape)) for key, (dtype, shape) in entry["arrays"].items()}
    assert set(declared) == set(arrays), set(declared) ^ set(arrays)
    noise = Noise(**entry["noise"]) if "noise" in entry else None
    return Case(
        name=name,
        arrays={key: widened(array) if declared[key][0] == "bf16" else array for key, array in arrays.items()},
        declared=declared,
        noise=noise,
        stable_tokens=entry.get("tokens_stable_under_noise"),
    )


def widened(bits: Array) -> Array:
    """Float32 of BF16 bit patterns."""
    return np.left_shift(bits.astype(np.uint32), 16).view(np.float32)


def relative_rows(got: Array, expected: Array) -> Array:
    """Euclidean error of each row over the length of the expected row."""
    difference = np.linalg.norm(got.astype(np.float64) - expected.astype(np.float64), axis=-1)
    return difference / np.maximum(np.linalg.norm(expected.astype(np.float64), axis=-1), 1e-30)


def margins(logits: Array) -> Array:
    """Distance between the two best tokens of each row."""
    best = np.sort(logits, axis=-1)[..., -2:]
    return best[..., 1] - best[..., 0]


def distance(got: Array, expected: Array) -> Distance:
    """Distance of logits [rows, vocab] from golden ones of the same rows."""
    assert got.shape == expected.shape, (got.shape, expected.shape)
    errors = relative_rows(got, expected)
    missed = got.argmax(-1) != expected.argmax(-1)
    return Distance(
        median=float(np.median(errors)),
        p90=float(np.quantile(errors, 0.9)),
        within_thousandth=float((errors <= 1e-3).mean()),
        top1=float(1 - missed.mean()),
        worst_missed_margin=float(margins(expected)[missed].max(initial=0.0)),
        num_rows=len(errors),
        is_finite=bool(np.isfinite(got).all()),
    )


def t1_faults(found: Distance) -> list[str]:
    """What of profile fp32 is outside."""
    return _outside(
        found,
        [
            ("median", found.median <= 1e-4),
            ("rows within 1e-3", found.within_thousandth >= 0.85),
            ("top-1", found.top1 >= 0.97),
        ],
    )


def t2_faults(found: Distance, noise: Noise, length: int) -> list[str]:
    """What of profile vendor is outside, given the noise of the case and the length of its prompt."""
    return _outside(
        found,
        [
            ("median", found.median <= max(0.01, 1.3 * noise.rel_median + 0.005)),
            ("p90", found.p90 <= max(0.02, 1.5 * noise.rel_p90 + 0.015)),
            ("margin of a missed top-1", found.worst_missed_margin < MISSED_MARGIN),
            ("top-1", length < SHORT_PROMPT or found.top1 >= noise.top1 - 0.08),
        ],
    )


def t3_faults(found: Distance) -> list[str]:
    """What of a profile with one other rounding point is outside."""
    return _outside(
        found,
        [("median", found.median <= 0.10), ("p90", found.p90 <= 0.20), ("top-1", found.top1 >= 0.85)],
    )


def _outside(found: Distance, rules: list[tuple[str, bool]]) -> list[str]:
    # NaN compares false everywhere except where a rule asks for its absence, so it is a rule of its own.
    return [name for name, holds in [("finite", found.is_finite), *rules] if not holds]


def equal_rows(got: Array, expected: Array) -> float:
    """Share of rows that agree in every entry."""
    assert got.shape == expected.shape, (got.shape, expected.shape)
    return float((got == expected).all(axis=-1).mean())


def mean_jaccard(got: Array, expected: Array) -> float:
    """Mean over rows of intersection over union of their non-negative entries; 1 where both are empty."""
    assert len(got) == len(expected), (got.shape, expected.shape)
    shares = []
    for ours, theirs in zip(got.tolist(), expected.tolist(), strict=True):
        left, right = ({entry for entry in row if entry >= 0} for row in (ours, theirs))
        shares.append(len(left & right) / len(left | right) if left | right else 1.0)
    return float(np.mean(shares))


def close_share(got: Array, expected: Array, relative: float = FIRST_LAYERS_RELATIVE) -> float:
    """Share of elements that agree to a relative bound."""
    assert got.shape == expected.shape, (got.shape, expected.shape)
    with np.errstate(invalid="ignore"):
        close = np.abs(got - expected) <= relative * np.abs(expected)
    return float((close | (got == expected)).mean()) if close.size else 1.0


def trace_faults(traced: Mapping[str, Array], case: Case) -> list[str]:
    """What of a vendor trace is outside: selections, candidates, router ids, and every value of the first layers."""
    faults = []
    golden = {point: array for point, array in case.arrays.items() if point.startswith("trace/")}
    first_scorer = min((_layer(point) for point in golden if point.endswith("index.selected")), default=-1)
    for point, expected in golden.items():
        got, layer_id = traced[point], _layer(point)
        if point.endswith("engram.rows"):
            holds = np.array_equal(got, expected)
        elif point.endswith("router.ids"):
            holds = _enough_rows(got, expected, 0.99 if layer_id <= 1 else 0.93)
        elif point.endswith("index.selected") and layer_id == first_scorer:
            holds = equal_rows(got, expected) >= 0.99
        elif point.endswith(("index.selected", "index.candidates")):
            holds = mean_jaccard(got, expected) >= 0.9
        else:
            holds = layer_id > 1 or close_share(got, expected) >= 0.99
        faults += [] if holds else [point]
    return faults


def _layer(point: str) -> int:
    name = point.removeprefix("trace/").partition(".")[0]
    return int(name[1:]) if name[1:].isdigit() else 0 if name == "embed" else LAST_LAYER


def _enough_rows(got: Array, expected: Array, share: float) -> bool:
    # One row of a short prompt is more than the share that may differ: the rule cannot be finer than a row.
    return equal_rows(got, expected) >= min(share, 1 - 1 / len(expected))


def module_faults(got: Array, expected: Array, exact: bool) -> list[str]:
    """What is outside when one module was given golden inputs; `exact` for profile fp32, else vendor.

    How far two right implementations may be apart, relative to the root mean square of the golden row (its scale):

        exact    a sum of n <= 1024 FP32 products in two orders: n^(1/2) 2^-24 = 2^-19 of the scale; three sums deep,
                 with room for one bit: 2^-17
        vendor   an FP32 sum that falls on the other side of a BF16 tie moves one stored value by one ulp, at most 2^-7
                 of it; where that value is quantised next, one FP8 code moves, 2^-3 of one of K >= 64 terms:
                 2^-3 / 64^(1/2) = 2^-6 of the scale all over one row; a few such places: 2^-4.  Both are rare, so the
                 typical element is bounded too: 99 of 100 differ by less than a BF16 ulp at the scale, 2^-7
    """
    scale = np.sqrt((expected.astype(np.float64) ** 2).mean(axis=-1, keepdims=True))
    errors = np.abs(got.astype(np.float64) - expected) / np.maximum(scale, 1e-30)
    worst, typical = float(errors.max(initial=0.0)), float((errors <= MODULE_TYPICAL).mean()) if errors.size else 1.0
    if not worst <= (MODULE_EXACT if exact else MODULE_WORST):
        return [f"worst element off by {worst:.2e} of its row"]
    return (
        [] if exact or typical >= 0.99 else [f"{typical:.3f} of the elements within {MODULE_TYPICAL:.2e} of their row"]
    )


def greedy_faults(got: list[int], tokens: list[int], step_logits: Array, stable_tokens: int) -> list[str]:
    """Where a greedy text leaves the golden one although it must not.

    Up to `stable_tokens` a step may turn only at a close margin; behind the first turn the texts are different texts.
    """
    turns = [step for step, (ours, theirs) in enumerate(zip(got, tokens, strict=True)) if ours != theirs]
    if not turns or turns[0] >= stable_tokens:
        return []
    margin = float(margins(step_logits[turns[0]]))
    return [] if margin < CLOSE_MARGIN else [f"step {turns[0]}: {got[turns[0]]} at margin {margin:.3f}"]
