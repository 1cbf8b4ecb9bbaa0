"""How many drafts are worth verifying: `draft adaptive`.

    c_j         confidence that draft j is accepted if those before it are, corrected by how often that came true
    a_j         = c_1 * .. * c_j, the chance that draft j becomes a token
    seconds(n)  of a step with n rows: a line through what steps took, the past fading
    lengths     drafts of all requests in order of a, admitted while  (R + sum of a) / seconds(R + admitted)  grows

The admission stops at the first draft that does not help.  It so depends on no draft behind the one it decides about,
which the rejection rule needs: a look ahead would favour some tokens (spec: dspark.md section 5).

Drafting itself costs time.  A few steps without drafts measure what they cost; then a trial compares tokens per second
with and without.  Below 1 drafting pauses, and returns after a while only if it wins by a margin, so that it does not
flutter.  Nothing of this changes which tokens are right, only how many are tried.
"""

import enum
import time
from collections.abc import Callable, Sequence

PLAIN_STEPS = 4
"""Steps without drafts that are measured first."""
TRIAL_STEPS = 8
"""Steps with drafts before anything is concluded from them."""
PAUSED_STEPS = 64
"""Steps without drafts after a lost trial."""
REFRESHED_STEPS = 32
"""Steps with drafts before one without: the line forgets, and must keep knowing what those cost."""
STAY = 1.0
"""Speed over that without drafts below which drafting ends."""
RETURN = 1.05
"""The same for a trial after a pause."""
FADING = 0.98
"""Weight of the past against a new step."""

Clock = Callable[[], float]


class CostLine:
    """Seconds of a step as a line over its rows, fitted to fading measurements."""

    def __init__(self) -> None:
        self._weight = self._rows = self._seconds = self._squares = self._products = 0.0

    def add(self, rows: int, seconds: float) -> None:
        """A step of that many rows took that long."""
        self._weight = self._weight * FADING + 1
        self._rows = self._rows * FADING + rows
        self._seconds = self._seconds * FADING + seconds
        self._squares = self._squares * FADING + rows * rows
        self._products = self._products * FADING + rows * seconds

    def seconds(self, rows: int) -> float:
        """What a step is expected to take; the mean where all measured steps had the same rows."""
        if not self._weight:
            return 0.0
        mean_rows, mean_seconds = self._rows / self._weight, self._seconds / self._weight
        spread = self._squares / self._weight - mean_rows**2
        slope = (self._products / self._weight - mean_rows * mean_seconds) / spread if spread > 1e-6 else 0.0
        # More rows never take less: what looks like it is noise.
        return max(mean_seconds + max(slope, 0.0) * (rows - mean_rows), 0.0)


class Calibration:
    """Corrects confidences, position by position, by the acceptance that followed them."""

    def __init__(self, width: int) -> None:
        self._predicted = [1.0] * width
        self._accepted = [1.0] * width

    def judged(self, confidence: Sequence[float], num_drafts: int, num_accepted: int) -> None:
        """Of a block's drafts the first `num_accepted` were accepted, and the next one, if there is one, was not."""
        for k in range(min(num_drafts, num_accepted + 1)):
            self._predicted[k] = self._predicted[k] * FADING + confidence[k]
            self._accepted[k] = self._accepted[k] * FADING + (k < num_accepted)

    def survival(self, confidence: Sequence[float]) -> list[float]:
        """The chance of every draft to become a token; never growing along the block."""
        found, alive = [], 1.0
        for k, sure in enumerate(confidence):
            alive *= min(1.0, sure * self._accepted[k] / max(self._predicted[k], 1e-9))
            found.append(alive)
        return found


class _Phase(enum.Enum):
    """What the schedule is doing."""

    PLAIN = "plain"
    """Steps without drafts, counted down."""
    DRAFTING = "drafting"


class DraftSchedule:
    """Decides for one engine when to draft and how many drafts to verify; told the time by `clock` in seconds."""

    def __init__(self, width: int, clock: Clock = time.perf_counter) -> None:
        self.line = CostLine()
        self.calibration = Calibration(width)
        self._clock = clock
        self._began = self._drafted = 0.0
        self._phase, self._steps_left = _Phase.PLAIN, PLAIN_STEPS
        self._bar = STAY
        self._num_drafted = 0
        self._tokens = self._plain = 0.0
        self._is_warm = False

    @property
    def is_drafting(self) -> bool:
        """Whether the next step will have drafts."""
        return self._phase is _Phase.DRAFTING

    def begin(self) -> None:
        """A step begins."""
        self._began = self._drafted = self._clock()

    def lengths(self, confidence: Sequence[Sequence[float]]) -> list[int]:
        """Drafts to verify of every request, from confidences [requests, width]; the drafts have just been made."""
        self._drafted = self._clock()
        chances = [self.calibration.survival(row) for row in confidence]
        order = sorted((-chance, number) for number, row in enumerate(chances) for chance in row)
        lengths, expected = [0] * len(chances), float(len(chances))
        rows, speed = len(chances), self._speed(float(len(chances)), len(chances))
        for chance, number in order:
            expected, rows = expected - chance, rows + 1
            faster = self._speed(expected, rows)
            if faster <= speed:
                break
            lengths[number] += 1
            speed = faster
        return lengths

    def ran(self, num_requests: int, num_rows: int, num_tokens: int) -> None:
        """A step has run in which every request had its newest token and perhaps drafts, and nothing else."""
        now = self._clock()
        if self._is_warm:  # the first step reads files and decodes weights
            self.line.add(num_rows, now - self._drafted)
        self._is_warm = True
        if self._phase is _Phase.PLAIN:
            self._steps_left -= 1
            if not self._steps_left:
                self._phase = _Phase.DRAFTING
            return
        # Tokens of the step, and those that the same requests would have had without drafts in the same time.
        without = self.line.seconds(num_requests)
        self._tokens = self._tokens * FADING + num_tokens
        self._plain = self._plain * FADING + (num_requests / without if without else 0.0) * (now - self._began)
        self._num_drafted += 1
        if self._num_drafted >= TRIAL_STEPS:
            self._conclude()

    def _conclude(self) -> None:
        if self._tokens < self._bar * self._plain:
            self._phase, self._steps_left, self._bar = _Phase.PLAIN, PAUSED_STEPS, RETURN
            self._num_drafted, self._tokens, self._plain = 0, 0.0, 0.0  # the next trial begins with nothing
            return
        self._bar = STAY
        if self._num_drafted % REFRESHED_STEPS == 0:
            self._phase, self._steps_left = _Phase.PLAIN, 1

    def _speed(self, tokens: float, rows: int) -> float:
        seconds = self.line.seconds(rows)
        return tokens / seconds if seconds else tokens
