"""The schedule of drafts, told the time by the test."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flash41.engine.schedule import (
    PAUSED_STEPS,
    PLAIN_STEPS,
    REFRESHED_STEPS,
    TRIAL_STEPS,
    Calibration,
    CostLine,
    DraftSchedule,
)

SURE = [0.99] * 5
WIDTH = 5


@dataclass(slots=True)
class Machine:
    """A machine on which a step takes `fixed` seconds and `per_row` for every row, a draft `drafting`."""

    fixed: float = 1.0
    per_row: float = 0.0
    drafting: float = 0.0
    now: float = 0.0
    lengths: list[int] = field(default_factory=list)

    def run(self, schedule: DraftSchedule, confidence: list[float], num_accepted: int, num_requests: int = 1) -> bool:
        """One step of requests that all accept so many drafts; whether it drafted."""
        schedule.begin()
        drafts = schedule.is_drafting
        self.lengths = [0] * num_requests
        if drafts:
            self.now += self.drafting
            self.lengths = schedule.lengths([confidence] * num_requests)
        rows = num_requests + sum(self.lengths)
        self.now += self.fixed + self.per_row * rows
        accepted = [min(length, num_accepted) for length in self.lengths]
        for length, number in zip(self.lengths, accepted, strict=True):
            schedule.calibration.judged(confidence, length, number)
        schedule.ran(num_requests, rows, num_requests + sum(accepted))
        return drafts


def schedule_of(machine: Machine) -> DraftSchedule:
    return DraftSchedule(WIDTH, clock=lambda: machine.now)


def test_the_line_finds_what_a_row_costs() -> None:
    line = CostLine()
    assert line.seconds(7) == 0.0
    line.add(2, 5.0)
    assert line.seconds(1) == line.seconds(9) == 5.0
    for rows in (1, 6, 3, 12):
        line.add(rows, 3.0 + rows)
    assert line.seconds(6) == pytest.approx(9.0)
    assert line.seconds(100) == pytest.approx(103.0)


def test_the_line_follows_a_machine_that_changes() -> None:
    line = CostLine()
    for seconds in (10.0, 1.0):
        for _ in range(300):
            line.add(1, seconds)
            line.add(6, 2 * seconds)
    assert line.seconds(1) == pytest.approx(1.0, rel=0.05)


@given(st.lists(st.tuples(st.integers(1, 60), st.floats(0.001, 10)), min_size=1, max_size=30))
@settings(max_examples=50, deadline=None)
def test_the_line_never_falls_and_never_is_negative(steps: list[tuple[int, float]]) -> None:
    line = CostLine()
    for rows, seconds in steps:
        line.add(rows, seconds)
    found = [line.seconds(rows) for rows in range(1, 60)]
    assert found == sorted(found)
    assert found[0] >= 0


def test_confidence_is_corrected_by_what_was_accepted() -> None:
    calibration = Calibration(WIDTH)
    for _ in range(500):
        calibration.judged(SURE, 5, 1)  # the first is right, the second never; nobody looked at the others
    survival = calibration.survival(SURE)
    assert survival[0] == pytest.approx(1.0, abs=0.02)
    assert survival[1] < 0.05
    assert survival == sorted(survival, reverse=True)


@given(st.lists(st.floats(0, 1), min_size=WIDTH, max_size=WIDTH), st.integers(0, WIDTH))
@settings(max_examples=30, deadline=None)
def test_survival_never_grows_along_a_block(confidence: list[float], num_accepted: int) -> None:
    calibration = Calibration(WIDTH)
    calibration.judged(confidence, WIDTH, num_accepted)
    survival = calibration.survival(confidence)
    assert survival == sorted(survival, reverse=True)
    assert all(0 <= chance <= 1 for chance in survival)


def test_first_steps_are_plain_and_then_drafts_are_tried() -> None:
    machine = Machine()
    schedule = schedule_of(machine)
    drafted = [machine.run(schedule, SURE, 5) for _ in range(PLAIN_STEPS + 3)]
    assert drafted == [False] * PLAIN_STEPS + [True] * 3


def test_right_drafts_on_a_machine_where_rows_cost_little_go_on() -> None:
    machine = Machine(per_row=0.02, drafting=0.2)
    schedule = schedule_of(machine)
    drafted = [machine.run(schedule, SURE, 5) for _ in range(300)]
    # One step in a while shows what steps without drafts cost now.
    assert 0 < drafted[PLAIN_STEPS:].count(False) <= 300 / REFRESHED_STEPS
    assert schedule.line.seconds(1) == pytest.approx(machine.fixed + machine.per_row)
    assert schedule.line.seconds(6) == pytest.approx(machine.fixed + 6 * machine.per_row)


def test_the_first_step_which_reads_files_is_not_believed() -> None:
    machine = Machine(fixed=500.0)
    schedule = schedule_of(machine)
    machine.run(schedule, SURE, 5)
    machine.fixed = 1.0
    for _ in range(PLAIN_STEPS - 1):
        machine.run(schedule, SURE, 5)
    assert schedule.line.seconds(1) == pytest.approx(1.0)


def test_wrong_drafts_pause_and_are_tried_again_seldom() -> None:
    machine = Machine(per_row=0.1, drafting=0.3)
    schedule = schedule_of(machine)
    drafted = [machine.run(schedule, SURE, 0) for _ in range(600)]
    assert any(drafted)
    # A trial, then a pause, again and again.
    assert sum(drafted) <= 600 * 2 * TRIAL_STEPS / (TRIAL_STEPS + PAUSED_STEPS)
    assert any(drafted[300:])


def test_drafts_that_begin_to_be_right_are_used_again() -> None:
    machine = Machine(per_row=0.02, drafting=0.2)
    schedule = schedule_of(machine)
    for _ in range(100):
        machine.run(schedule, SURE, 0)
    drafted = [machine.run(schedule, SURE, 5) for _ in range(400)]
    assert drafted[-100:].count(False) <= 100 / REFRESHED_STEPS + 1


def test_drafting_does_not_flutter_where_it_neither_wins_nor_loses() -> None:
    # Three per cent faster with drafts: enough to stay, not enough to return.
    machine = Machine(per_row=0.0, drafting=0.94)
    schedule = schedule_of(machine)
    drafted = [machine.run(schedule, [1.0] * 5, 1) for _ in range(200)]
    assert drafted[PLAIN_STEPS:].count(False) <= 200 / REFRESHED_STEPS
    paused = schedule_of(machine)
    for _ in range(PLAIN_STEPS + TRIAL_STEPS):
        machine.run(paused, [1.0] * 5, 0)
    drafted = [machine.run(paused, [1.0] * 5, 1) for _ in range(400)]
    assert sum(drafted) < 100


def test_costly_rows_shorten_the_drafts() -> None:
    lengths = []
    for per_row in (0.0, 0.3, 30.0):
        machine = Machine(per_row=per_row)
        schedule = schedule_of(machine)
        for rows in (1, 6) * 20:
            schedule.line.add(rows, machine.fixed + per_row * rows)
        lengths.append(schedule.lengths([[0.8, 0.7, 0.6, 0.5, 0.4]])[0])
    assert lengths[0] == 5 > lengths[1] > lengths[2] == 0


def test_the_surest_drafts_of_all_requests_come_first() -> None:
    schedule = schedule_of(Machine())
    for rows in (1, 12) * 20:
        schedule.line.add(rows, 1.0 + 0.3 * rows)
    first, second = schedule.lengths([[0.2] * 5, [0.95] * 5])
    assert first == 0 < second


def test_a_length_depends_on_no_confidence_behind_it() -> None:
    # The rule of rejection would favour tokens otherwise.
    schedule = schedule_of(Machine())
    for rows in (1, 6) * 20:
        schedule.line.add(rows, 1.0 + 0.5 * rows)
    low = schedule.lengths([[0.9, 0.1, 0.0, 0.0, 0.0]])
    high = schedule.lengths([[0.9, 0.1, 1.0, 1.0, 1.0]])
    assert low == high == [1]
