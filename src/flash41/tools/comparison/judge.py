"""Point by point: how far two traces are apart, and where that is more than what comes in explains.

A row's error is |a - b| / |a|, Euclidean.  With e_in the largest error among the rows a point is computed from,

    explained      e <= floor + GAIN * e_in + flips * sqrt(e_in)

where the floor is what equal inputs may become by another order of sums: a rounding that falls differently.  The root
is the share of FP8 roundings that inputs so far apart let fall to the other side: an input off by e crosses a boundary,
2^-4 apart, with a chance of about 16 e and is then off by 2^-4, so a row is off by sqrt(16 e) / 16; twice that is let
through.  A point
diverges when one row in four is beyond its typical floor, or one row beyond its worst one.  Selections are judged by
`selections`.  Rows behind a selection that differs are not judged: they have read something else.
"""

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flash41.tools.comparison.dataflow import EXACT, OVER_CONTEXT, SELECTIONS, place, sources
from flash41.tools.comparison.files import Aligned, Pair
from flash41.tools.comparison.selections import SelectionResult, Verdict, block_scores, compare_experts, compare_rows

Array = NDArray[Any]

GAIN = 4.0
"""How much a module may enlarge the error of what it reads."""
ROWS_BEYOND = 0.25
"""Share of rows that may be beyond the typical floor."""
FEW_ROWS = 2
"""So few rows may be beyond it in a short prompt."""
OF_THIS_ROW = (*SELECTIONS, "attn.q", "index.q", "index.weights", "index.scores")
"""What only its own row reads; of everything else, later rows read earlier ones too."""


@dataclass(frozen=True, slots=True)
class Floor:
    """What equal inputs may become."""

    typical: float
    worst: float
    flips: float
    """Factor of the root of what comes in."""

    def of(self, point: str) -> "Floor":
        """The floor of one point: wider where FP4 rounds, without flips where nothing rounds an activation."""
        kind = place(point).kind
        if self is BF16_FLOOR and kind in FP4_STORED:
            return FP4_FLOOR
        return self if kind in BEHIND_ROUNDINGS else Floor(self.typical, self.worst, 0.0)


BF16_FLOOR = Floor(2.0**-7, 2.0**-4, 0.5)
"""One BF16 store, and the FP8 roundings of activations that fall to the other side behind it."""
FP32_FLOOR = Floor(1e-5, 1e-3, 0.0)
"""FP32 throughout."""
FP4_STORED = ("attn.main_row", "index.key", "index.q")
BEHIND_ROUNDINGS = (*FP4_STORED, "attn.q", "attn.window_row", "attn.out", "ffn.out", "resid.after_engram", "resid.out")
"""Behind linears whose inputs are rounded to FP8, or rounded themselves."""
FP4_FLOOR = Floor(2.0**-3, 2.0**-2, 0.5)
"""Where E2M1 rounds, one element that falls to the other side is off by a third of itself, not by a sixteenth."""


class Status(enum.Enum):
    """What became of a point."""

    EQUAL = "equal"
    """Every bit."""
    CLOSE = "close"
    """Within the floor."""
    FOLLOWS = "follows"
    """Beyond it, as far as what comes in explains."""
    DIVERGES = "diverges"
    """More than that: here something else is computed."""
    MISFIT = "misfit"
    """Shapes that cannot be laid beside each other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PointResult:
    """One point of both traces."""

    point: str
    status: Status
    num_rows: int
    num_beyond: int = 0
    """Rows that nothing explains."""
    first_row: int | None = None
    """The first of them."""
    median: float = 0.0
    """Median error of the rows; of selections, one minus the mean overlap."""
    worst: float = 0.0
    verdicts: Mapping[str, int] | None = None
    """Rows of a selection by verdict."""
    note: str = ""


class Judge:
    """Judges the points of two traces in the order of the forward."""

    def __init__(self, aligned: Aligned, floor: Floor) -> None:
        self._aligned = aligned
        self._floor = floor
        self._errors: dict[str, Array] = {}
        """Error of every row; infinite where a selection differs, for whatever reason."""
        self._skipped: dict[str, int] = {}

    def results(self) -> list[PointResult]:
        """One result per common point, in the order of the forward."""
        found = [self._judged(pair) for pair in self._aligned.pairs.values()]
        misfits = [
            PointResult(point=point, status=Status.MISFIT, num_rows=0, note=note)
            for point, note in self._aligned.misfits.items()
        ]
        return sorted([*found, *misfits], key=lambda result: place(result.point).order)

    def _judged(self, pair: Pair) -> PointResult:
        kind = place(pair.point).kind
        if kind in SELECTIONS:
            return self._judged_selection(pair)
        if kind in EXACT or kind == "draft.ids":
            return self._judged_integers(pair)
        return self._judged_values(pair)

    def _judged_values(self, pair: Pair) -> PointResult:
        errors, note = row_errors(pair.ours, pair.theirs), pair.note
        self._errors[pair.point] = errors
        if pair.ours.dtype == pair.theirs.dtype and np.array_equal(pair.ours, pair.theirs):
            return PointResult(point=pair.point, status=Status.EQUAL, num_rows=len(errors), note=note)
        incoming = self._incoming(pair.point, len(errors))
        judged = np.isfinite(incoming)
        floor = self._floor.of(pair.point)
        coming = np.where(judged, incoming, 0.0)
        allowed = GAIN * coming + floor.flips * np.sqrt(coming)
        above = judged & (errors > floor.typical + allowed)
        far = judged & (errors > floor.worst + allowed)
        beyond = above if above.sum() > max(FEW_ROWS, ROWS_BEYOND * judged.sum()) else far
        status = Status.CLOSE if bool((errors <= floor.typical).all()) else Status.FOLLOWS
        if beyond.any():
            status = Status.DIVERGES
        return PointResult(
            point=pair.point,
            status=status,
            num_rows=len(errors),
            num_beyond=int(beyond.sum()),
            first_row=int(np.flatnonzero(beyond)[0]) + pair.skipped_rows if beyond.any() else None,
            median=float(np.median(errors)),
            worst=float(errors.max(initial=0.0)),
            note=note,
        )

    def _judged_integers(self, pair: Pair) -> PointResult:
        """Numbers that follow from the token ids alone, or (drafts) from logits that are judged before them."""
        differs = (pair.ours.reshape(len(pair.ours), -1) != pair.theirs.reshape(len(pair.theirs), -1)).any(axis=1)
        self._errors[pair.point] = np.where(differs, np.inf, 0.0)
        incoming = self._incoming(pair.point, len(differs))
        beyond = differs & (incoming == 0.0)
        status = Status.EQUAL if not differs.any() else Status.DIVERGES if beyond.any() else Status.FOLLOWS
        return PointResult(
            point=pair.point,
            status=status,
            num_rows=len(differs),
            num_beyond=int(beyond.sum()),
            first_row=int(np.flatnonzero(beyond)[0]) + pair.skipped_rows if beyond.any() else None,
            median=float(differs.mean()),
            worst=float(differs.any()),
            note=pair.note,
        )

    def _judged_selection(self, pair: Pair) -> PointResult:
        result = self._selection(pair)
        verdicts = result.verdicts
        self._errors[pair.point] = np.where(verdicts == Verdict.EQUAL, 0.0, np.inf)
        real = verdicts == Verdict.REAL
        # Without scores a difference can only be held against whether anything came in that could explain it.
        unexplained = (verdicts == Verdict.UNKNOWN) & (self._incoming(pair.point, len(verdicts)) == 0.0)
        beyond = real | unexplained
        status = Status.FOLLOWS if (verdicts != Verdict.EQUAL).any() else Status.EQUAL
        if beyond.any():
            status = Status.DIVERGES
        names = {verdict.name.lower(): int((verdicts == verdict).sum()) for verdict in Verdict}
        notes = [note for note in (pair.note, result.first_real if beyond.any() else "") if note]
        return PointResult(
            point=pair.point,
            status=status,
            num_rows=len(verdicts),
            num_beyond=int(beyond.sum()),
            first_row=int(np.flatnonzero(beyond)[0]) + pair.skipped_rows if beyond.any() else None,
            median=1.0 - result.jaccard,
            worst=float((verdicts != Verdict.EQUAL).any()),
            verdicts={name: count for name, count in names.items() if count},
            note="; ".join(notes),
        )

    def _selection(self, pair: Pair) -> SelectionResult:
        where = place(pair.point)
        if where.kind == "router.ids":
            ours, theirs = self._both(pair.point.replace("router.ids", "router.logits"), len(pair.ours))
            return compare_experts(pair.ours, pair.theirs, ours, theirs)
        ours, theirs = self._both(f"L{where.layer}.index.scores", len(pair.ours))
        blocks = self._blocks(where.layer or 0, len(pair.ours))
        if where.kind == "index.selected":
            return compare_rows(pair.ours, pair.theirs, ours, theirs, blocks)
        size = None if ours is None else block_size(pair.ours, ours)
        if ours is None or size is None:
            return compare_rows(pair.ours, pair.theirs)
        return compare_rows(
            pair.ours, pair.theirs, block_scores(ours, size), None if theirs is None else block_scores(theirs, size)
        )

    def _blocks(self, layer: int, num_rows: int) -> tuple[Array, Array, int] | None:
        """The candidate blocks that bound a layer: those of the newest source before it."""
        sources_before = [n for n in range(layer) if f"L{n}.index.candidates" in self._aligned.pairs]
        if not sources_before:
            return None
        pair = self._aligned.pairs[f"L{sources_before[-1]}.index.candidates"]
        scores, _ = self._both(f"L{sources_before[-1]}.index.scores", len(pair.ours))
        size = None if scores is None else block_size(pair.ours, scores)
        return None if size is None or len(pair.ours) != num_rows else (pair.ours, pair.theirs, size)

    def _both(self, point: str, num_rows: int) -> tuple[Array | None, Array | None]:
        """The scores of both traces for these rows, where both have them."""
        pair = self._aligned.pairs.get(point)
        if pair is None or len(pair.ours) != num_rows:
            return None, None
        return pair.ours, pair.theirs

    def _incoming(self, point: str, num_rows: int) -> Array:
        """The largest error that comes in, for each of a point's rows."""
        largest = np.zeros(num_rows)
        over_context = place(point).kind in OVER_CONTEXT
        for source in sources(point, self._errors):
            errors = self._errors[source]
            if not len(errors):
                continue
            if over_context and place(source).kind not in OF_THIS_ROW:
                errors = np.maximum.accumulate(errors)
            largest = np.maximum(largest, _spread(errors, num_rows))
        return largest


def row_errors(ours: Array, theirs: Array) -> Array:
    """|a - b| / |a| of each row; infinities must be in the same places, and NaN is infinitely far."""
    a, b = (array.reshape(len(array), -1).astype(np.float64) for array in (ours, theirs))
    same = a == b  # infinities of equal sign among them
    with np.errstate(invalid="ignore"):
        difference = np.where(same, 0.0, a - b)
    wrong = ~np.isfinite(difference).all(axis=1)
    lengths = np.linalg.norm(np.where(np.isfinite(a), a, 0.0), axis=1)
    distances = np.linalg.norm(np.where(np.isfinite(difference), difference, 0.0), axis=1)
    errors = np.where(distances == 0.0, 0.0, distances / np.maximum(lengths, 1e-30))
    return np.where(wrong, np.inf, errors)


def block_size(candidates: Array, scores: Array) -> int | None:
    """Rows of a candidate block: the newest visible row lies in the last block kept; None if no size agrees."""
    visible = np.isfinite(scores).sum(axis=1)
    last = candidates.max(axis=1)
    rows = visible > 0
    sizes = [size for size in range(1, scores.shape[1] + 1) if np.array_equal((visible[rows] - 1) // size, last[rows])]
    return sizes[-1] if sizes else None


def _spread(errors: Array, num_rows: int) -> Array:
    """Errors of tokens as errors of the groups that close with them, or the other way round.

    Group j of ratio r closes with token (j+1)r - 1; a token reads the groups closed so far.
    """
    if len(errors) == num_rows:
        return errors
    if len(errors) > num_rows:
        ratio = len(errors) // max(1, num_rows)
        while ratio > 1 and len(errors) // ratio < num_rows:
            ratio -= 1
        closing = np.minimum((np.arange(num_rows) + 1) * ratio - 1, len(errors) - 1)
        return np.maximum.reduceat(errors[: closing[-1] + 1], np.concatenate(([0], closing[:-1] + 1)))
    ratio = -(-num_rows // len(errors))
    closed = (np.arange(num_rows) + 1) // ratio
    known = np.concatenate(([0.0], errors))
    spread: Array = known[np.minimum(closed, len(errors))]
    return spread
