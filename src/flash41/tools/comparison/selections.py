"""Two selections of one row, compared as sets: the same, a tie, what other scores explain, or another rule.

Top-k of scores s keeps e and drops f when s(e) >= s(f).  If the first trace keeps e and the second f,

    margin = s1(e) - s1(f) >= 0      and      s2(f) - s2(e) >= 0      so      margin <= |s1(e)-s2(e)| + |s1(f)-s2(f)|

A margin of 0 is a tie that fell differently; a margin within the bound follows from the scores, whose own difference is
judged elsewhere; a margin beyond it is a difference of rule: another mask, bias, count or key.

The router adds a bias that no trace shows, the same in both, so only the sum of both lines can be tested there:
[s1(e) - s2(e)] + [s2(f) - s1(f)] >= 0.  A wrong bias passes it in about half the rows; so the number of rows that flip
is held against what scores so close to each other can explain.  spec: attention.md section 11.3, moe.md section 1.
"""

import enum
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

FLIPS_ALLOWED = 3
FLIPS_FACTOR = 4.0
"""Flips of a router beyond 3 + 4 times the expected ones are another rule, not noise."""
SLACK = 1e-6
"""Relative slack of the bounds, for scores kept in FP32."""


class Verdict(enum.IntEnum):
    """What became of one row's selection, worse ones later."""

    EQUAL = 0
    TIE = 1
    """Members with exactly equal scores were exchanged."""
    FOLLOWS = 2
    """The two traces' scores explain it."""
    UNKNOWN = 3
    """It differs, and no scores are there to judge by."""
    REAL = 4
    """The scores do not explain it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectionResult:
    """A selection point, row by row."""

    verdicts: Array
    """`Verdict` of each row."""
    jaccard: float
    """Mean overlap of the two sets over their union."""
    first_real: str = ""
    """What differs in the first row that is REAL or UNKNOWN."""


@dataclass(frozen=True, slots=True)
class Blocks:
    """Candidate blocks of one query."""

    kept: set[int]
    size: int

    def __contains__(self, row: int) -> bool:
        return row // self.size in self.kept

    def contain(self, rows: list[int]) -> bool:
        """Whether all of them do."""
        return all(row in self for row in rows)


def compare_rows(
    ours: Array,
    theirs: Array,
    our_scores: Array | None = None,
    their_scores: Array | None = None,
    blocks: tuple[Array, Array, int] | None = None,
) -> SelectionResult:
    """Judges selected rows or blocks [T, k], -1 for none, by scores [T, N].

    `blocks` restricts the numbers that could be chosen: the candidate blocks of both traces and the rows of a block.
    """
    verdicts, overlaps, first = [], [], ""
    for t in range(len(ours)):
        a, b = _members(ours[t]), _members(theirs[t])
        overlaps.append(len(a & b) / max(1, len(a | b)))
        verdict, what = Verdict.EQUAL, ""
        if a != b:
            verdict, what = _judged(
                sorted(a - b), sorted(b - a), _row(our_scores, t), _row(their_scores, t), _allowed(blocks, t)
            )
        if verdict >= Verdict.UNKNOWN and not first:
            first = f"row {t}: {what}"
        verdicts.append(verdict)
    return SelectionResult(verdicts=np.array(verdicts, dtype=np.int8), jaccard=_mean(overlaps), first_real=first)


def block_scores(scores: Array, block_size: int) -> Array:
    """[T, blocks]: the best score of each block; the block with the newest visible row is pinned at +inf."""
    num_rows = scores.shape[1]
    padded = np.pad(scores, ((0, 0), (0, -num_rows % block_size)), constant_values=-np.inf)
    best: Array = padded.reshape(len(scores), -1, block_size).max(axis=-1)
    visible = np.isfinite(scores).sum(axis=1)
    rows = np.flatnonzero(visible)
    best[rows, (visible[rows] - 1) // block_size] = np.inf
    return best


def compare_experts(
    ours: Array, theirs: Array, our_logits: Array | None = None, their_logits: Array | None = None
) -> SelectionResult:
    """Judges chosen experts [T, k] by router logits [T, E]; the bias of the selection is unknown, and equal in both."""
    if our_logits is None or their_logits is None:
        return compare_rows(ours, theirs)
    scores = [np.sqrt(np.logaddexp(0.0, logits.astype(np.float64))) for logits in (our_logits, their_logits)]
    verdicts, overlaps, first, expected = [], [], "", 0.0
    for t in range(len(ours)):
        a, b = _members(ours[t]), _members(theirs[t])
        overlaps.append(len(a & b) / max(1, len(a | b)))
        expected += _chance_of_flip(scores[0][t], scores[1][t], len(a))
        if a == b:
            verdicts.append(Verdict.EQUAL)
            continue
        lost, gained = sorted(a - b), sorted(b - a)
        change, slack = scores[1][t] - scores[0][t], SLACK * scores[0][t]
        possible = len(lost) == len(gained) and all(
            change[f] - change[e] >= -(slack[e] + slack[f]) for e in lost for f in gained
        )
        verdicts.append(Verdict.FOLLOWS if possible else Verdict.REAL)
        if not possible and not first:
            first = f"row {t}: experts {lost} became {gained}, which equal biases do not allow"
    found = np.array(verdicts, dtype=np.int8)
    num_flips = int((found != Verdict.EQUAL).sum())
    if num_flips > FLIPS_ALLOWED + FLIPS_FACTOR * expected:
        t = int(np.flatnonzero(found != Verdict.EQUAL)[0])
        first = first or f"row {t}: {num_flips} of {len(found)} rows flip where {expected:.1f} were to be expected"
        found = np.where(found == Verdict.EQUAL, found, Verdict.REAL).astype(np.int8)
    return SelectionResult(verdicts=found, jaccard=_mean(overlaps), first_real=first)


def _judged(
    lost: list[int], gained: list[int], ours: Array | None, theirs: Array | None, allowed: tuple[Blocks, Blocks] | None
) -> tuple[Verdict, str]:
    """Of members that only one selection has; scores are [N] of this row."""
    what = f"{_few(lost)} became {_few(gained)}"
    if ours is None:
        return Verdict.UNKNOWN, what
    fault = _forbidden(lost, gained, ours, allowed)
    if fault:
        return Verdict.REAL, f"{what}: {fault}"
    if allowed is not None and not (allowed[0].contain(gained) and allowed[1].contain(lost)):
        return Verdict.FOLLOWS, what  # from candidate blocks that differ, and are judged themselves
    if len(lost) != len(gained):
        return Verdict.REAL, f"{what}: {len(lost)} members against {len(gained)}"
    margin = float(max(ours[e] for e in lost) - min(ours[f] for f in gained))
    if margin == 0.0:
        return Verdict.TIE, what
    if theirs is None:
        return Verdict.UNKNOWN, f"{what}: margin {margin:.3g}"
    bound = _moved(lost, ours, theirs) + _moved(gained, ours, theirs)
    if margin <= bound + SLACK * float(max(abs(ours[e]) for e in lost + gained)):
        return Verdict.FOLLOWS, what
    return Verdict.REAL, f"{what}: margin {margin:.3g} where the scores moved by {bound:.3g}"


def _forbidden(lost: list[int], gained: list[int], ours: Array, allowed: tuple[Blocks, Blocks] | None) -> str:
    """Why no scores could have made this exchange; empty if they could."""
    if max(lost + gained) >= len(ours):
        return f"beyond the {len(ours)} rows that were scored"
    hidden = [f for f in gained if ours[f] == -np.inf]
    if hidden:
        return f"{_few(hidden)} not visible in the first trace"
    outside = [] if allowed is None else [f for f in gained if f not in allowed[1]]
    return f"{_few(outside)} outside the candidate blocks" if outside else ""


def _moved(members: list[int], ours: Array, theirs: Array) -> float:
    """The largest change of a member's score; an infinity that stays is no change."""
    return float(max((0.0 if ours[e] == theirs[e] else abs(ours[e] - theirs[e]) for e in members), default=0.0))


def _chance_of_flip(ours: Array, theirs: Array, k: int) -> float:
    """Share of cases in which scores this far apart exchange the last member of a top-k."""
    if not 0 < k < len(ours):
        return 0.0
    best = np.sort(ours)[::-1]
    low, high = max(0, k - 3), min(len(ours) - 1, k + 2)
    spacing = (best[low] - best[high]) / max(1, high - low)
    noise = float(np.sqrt(np.mean((ours - theirs) ** 2)))
    return min(1.0, 2 * noise / max(float(spacing), 1e-30))


def _members(row: Array) -> set[int]:
    return {int(number) for number in row if number >= 0}


def _row(scores: Array | None, t: int) -> Array | None:
    return None if scores is None else scores[t].astype(np.float64)


def _allowed(blocks: tuple[Array, Array, int] | None, t: int) -> tuple[Blocks, Blocks] | None:
    """Rows of both traces that lie inside the candidate blocks of row t."""
    if blocks is None:
        return None
    ours, theirs, size = blocks
    return Blocks(_members(ours[t]), size), Blocks(_members(theirs[t]), size)


def _few(numbers: list[int]) -> str:
    shown = ", ".join(map(str, numbers[:4]))
    return f"{shown} and {len(numbers) - 4} more" if len(numbers) > 4 else shown


def _mean(values: list[float]) -> float:
    return float(np.mean(values)) if values else 1.0
