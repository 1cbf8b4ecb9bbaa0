from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from flash41.config.run import Profile
from flash41.engine.engine import Engine
from flash41.engine.events import TokenEvent
from flash41.engine.image_rows import ImageRows
from flash41.engine.limits import SchedulerLimits
from flash41.engine.load import LoadedModel
from flash41.engine.plan import PlannedSpan, StepPlan
from flash41.engine.request import FinishReason, Request, SamplingParams
from flash41.engine.runner import Runner, Staged
from flash41.errors import CheckpointError, ProtocolError, RequestError
from flash41.kernels.reference.backend import ReferenceKernels
from flash41.model.backbone import BackboneOutput
from helpers.feeding import greedy
from helpers.golden_judge import CHECKPOINT
from helpers.models import Models, fresh_model

EOS = 1
LONGEST = 48
PROMPTS = ((0,), (0, 7), tuple(range(3, 22)), (0, 300, 40, 500, 9, 9, 9))
NUM_TOKENS = 4


@pytest.fixture(scope="module")
def model(models: Models) -> LoadedModel:
    return models(CHECKPOINT, Profile.VENDOR)


def engine(model: LoadedModel, num_slots: int = 4, budget: int = 64) -> Engine:
    limits = SchedulerLimits(
        max_num_seqs=num_slots,
        max_num_batched_tokens=budget,
        max_model_len=LONGEST,
        look_back=model.config.engram.max_ngram - 1,
    )
    return Engine(model.runner(num_slots, LONGEST), limits)


def requests(prompts: Sequence[Sequence[int]] = PROMPTS, **values: Any) -> list[Request]:
    params = SamplingParams(**{"max_tokens": NUM_TOKENS, "ignore_eos": True, **values})
    return [
        Request(request_id=number, prompt_ids=ids, params=params, seed=1000 + number, eos_token_id=EOS)
        for number, ids in enumerate(prompts)
    ]


def run(tested: Engine, asked: Sequence[Request] = ()) -> list[TokenEvent]:
    """All events until nothing is left."""
    for one in asked:
        tested.add(one)
    events: list[TokenEvent] = []
    while tested.num_unfinished:
        events += tested.step()
        tested.scheduler.check_integrity()
    return events


def answers(tested: Engine, asked: Sequence[Request]) -> list[list[int]]:
    run(tested, asked)
    return [one.output_ids for one in asked]


@pytest.fixture(scope="module")
def expected(model: LoadedModel) -> list[list[int]]:
    """What each prompt is answered alone, in an engine of its own."""
    return [answers(engine(model, 1), [one])[0] for one in requests()]


def test_a_step_without_requests_does_nothing(model: LoadedModel) -> None:
    assert list(engine(model).step()) == []


def test_greedy_answers_are_those_of_a_plain_loop_over_the_model(model: LoadedModel) -> None:
    got = answers(engine(model), requests(temperature=0))
    assert got == greedy(model, PROMPTS, NUM_TOKENS)[0]


def test_every_token_is_an_event_and_the_last_one_says_so(model: LoadedModel) -> None:
    asked = requests()
    events = run(engine(model), asked)
    for one in asked:
        own = [event for event in events if event.request_id == one.request_id]
        assert [event.token.token_id for event in own if event.token] == one.output_ids
        assert [event.finish_reason for event in own] == [None] * (NUM_TOKENS - 1) + [FinishReason.LENGTH]


@pytest.mark.parametrize(("num_slots", "budget"), [(4, 64), (4, 3), (2, 7), (1, 2)])
def test_an_answer_does_not_depend_on_its_company_nor_on_the_budget(
    num_slots: int, budget: int, model: LoadedModel, expected: list[list[int]]
) -> None:
    assert answers(engine(model, num_slots, budget), requests()) == expected


@given(order=st.permutations(range(len(PROMPTS))), num_slots=st.integers(1, 4), budget=st.integers(2, 24))
@settings(max_examples=3, deadline=None)
def test_an_answer_does_not_depend_on_when_it_arrives(
    order: list[int], num_slots: int, budget: int, model: LoadedModel, expected: list[list[int]]
) -> None:
    tested, asked = engine(model, num_slots, budget), requests()
    for number in order:
        tested.add(asked[number])
        tested.step()
    run(tested)
    assert [one.output_ids for one in asked] == expected


def test_an_answer_does_not_depend_on_neighbours_that_are_aborted(
    model: LoadedModel, expected: list[list[int]]
) -> None:
    tested, asked = engine(model, 2, 6), requests()
    for one in asked:
        tested.add(one)
    tested.step()
    tested.abort(0)
    tested.step()
    tested.abort(2)
    run(tested)
    assert [asked[number].output_ids for number in (1, 3)] == [expected[1], expected[3]]
    assert [one.finish_reason for one in asked] == [
        FinishReason.ABORT,
        FinishReason.LENGTH,
        FinishReason.ABORT,
        FinishReason.LENGTH,
    ]


def test_a_request_that_can_never_run_is_refused_and_nothing_else_suffers(
    model: LoadedModel, expected: list[list[int]]
) -> None:
    tested = engine(model)
    (long,) = requests([range(3, 3 + LONGEST)])
    for refuse in (tested.check, tested.add):
        with pytest.raises(RequestError, match=f"got {LONGEST}, expected fewer tokens than max_model_len {LONGEST}"):
            refuse(long)
    assert answers(tested, requests()) == expected


class Meddler:
    """A runner that does something of ours while a step runs."""

    def __init__(self, runner: Runner, meddle: Callable[[], None]) -> None:
        self._runner = runner
        self._meddle = meddle

    def foresee(self, spans: Sequence[PlannedSpan]) -> None:
        """Nothing lies in files."""

    def stage(self, plan: StepPlan, rows: ImageRows | None = None) -> Staged:
        return self._runner.stage(plan, rows)

    def run(self, staged: Staged) -> BackboneOutput:
        output = self._runner.run(staged)
        self._meddle()
        return output


def meddled(model: LoadedModel, meddle: Callable[[], None], num_slots: int = 4) -> tuple[Engine, Runner]:
    tested = engine(model, num_slots)
    runner = tested.runner
    tested.runner = Meddler(runner, meddle)  # type: ignore[assignment]
    return tested, runner


def test_a_request_aborted_while_a_step_runs_ends_without_its_token(
    model: LoadedModel, expected: list[list[int]]
) -> None:
    def abort() -> None:
        tested.abort(0)

    tested, runner = meddled(model, abort)
    asked = requests()[:2]
    for one in asked:
        tested.add(one)
    assert [event.request_id for event in tested.step()] == [1]
    tested.runner = runner
    run(tested)
    assert [one.output_ids for one in asked] == [[], expected[1]]


@pytest.mark.parametrize("error", [CheckpointError("gone"), KeyboardInterrupt()], ids=["error", "interrupt"])
def test_a_step_that_fails_ends_its_own_requests_and_the_others_go_on(
    error: BaseException, model: LoadedModel, expected: list[list[int]]
) -> None:
    def fail() -> None:
        raise error

    tested, runner = meddled(model, fail, num_slots=2)
    asked = requests()
    for one in asked:
        tested.add(one)
    with pytest.raises(type(error)):
        tested.step()
    tested.scheduler.check_integrity()
    assert [one.finish_reason for one in asked] == [FinishReason.ABORT, FinishReason.ABORT, None, None]
    tested.runner = runner
    run(tested)
    assert [one.output_ids for one in asked] == [[], [], *expected[2:]]


class Breaking(ReferenceKernels):
    """Kernels of which one operation can be made to fail in the middle of a forward."""

    num_left = -1

    def sparse_attention(self, *arguments: Any, **named: Any) -> Tensor:
        self.num_left -= 1
        if self.num_left == 0:
            raise CheckpointError("broken off")
        return super().sparse_attention(*arguments, **named)


def test_a_forward_that_breaks_off_leaves_no_state_behind() -> None:
    model = fresh_model(Profile.VENDOR, Breaking)
    expected = answers(engine(model), requests())
    tested, kernels = engine(model), model.kernels
    assert isinstance(kernels, Breaking)
    for one in requests():
        tested.add(one)
    tested.step()
    kernels.num_left = 4  # layers 0 to 2 have their rows of this step, the others do not
    with pytest.raises(CheckpointError, match="broken off"):
        tested.step()
    assert tested.num_unfinished == 0
    assert answers(tested, requests()) == expected


class AllowNothing:
    """A constraint no token satisfies."""

    def allowed(self) -> NDArray[np.bool_]:
        return np.zeros(512, np.bool_)

    def push(self, token_id: int) -> None:
        raise AssertionError(token_id)


def test_a_request_without_a_possible_token_is_an_error_and_the_engine_goes_on(
    model: LoadedModel, expected: list[list[int]]
) -> None:
    tested, (one,) = engine(model), requests([(0, 5)])
    one.constraint = AllowNothing()
    tested.add(one)
    with pytest.raises(ProtocolError, match="request 0: tokens possible at position 2: got 0"):
        tested.step()
    assert answers(tested, requests()) == expected


class StopAt:
    """A watcher that ends the answer at its n-th token."""

    def __init__(self, count: int) -> None:
        self._left = count

    def push(self, _: int) -> bool:
        self._left -= 1
        return self._left == 0


def test_a_stop_watcher_ends_one_answer_of_several(model: LoadedModel, expected: list[list[int]]) -> None:
    asked = requests()
    asked[2].stop_watcher = StopAt(2)
    assert answers(engine(model), asked) == [*expected[:2], expected[2][:2], expected[3]]
    assert asked[2].finish_reason is FinishReason.STOP
