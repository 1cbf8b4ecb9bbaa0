"""Drafting in an engine whose model is a table: what is proposed, what stays, and what is cut behind a stop."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from flash41.config.run import DraftAccept
from flash41.engine import speculative
from flash41.engine.drafting import Drafting
from flash41.engine.engine import Engine
from flash41.engine.limits import SchedulerLimits
from flash41.engine.plan import PlannedSpan, StepPlan
from flash41.engine.request import FinishReason, Request, SamplingParams
from flash41.engine.schedule import DraftSchedule
from flash41.errors import ProtocolError

VOCAB, EOS, START = 6, 5, 4
WIDTH = 3
DICE = np.random.default_rng(3)
TARGET = torch.from_numpy(DICE.normal(size=(VOCAB, VOCAB)))
OWN = TARGET + torch.from_numpy(DICE.normal(size=(VOCAB, VOCAB)))
"""Logits of target and drafter by the token before."""


@dataclass(slots=True)
class TableRunner:
    """A model whose logits depend on the last token alone."""

    num_rows: list[int] = field(default_factory=list)
    kept: list[tuple[int, int]] = field(default_factory=list)

    def foresee(self, spans: Sequence[PlannedSpan]) -> None:
        """Nothing lies in files."""

    def stage(self, plan: StepPlan, _: Any = None) -> StepPlan:
        return plan

    def run(self, plan: StepPlan) -> Any:
        self.num_rows.append(plan.num_rows)
        last = [token for span in plan.spans for token in span.ids[len(span.ids) - span.num_choices :]]
        return SimpleNamespace(logits=TARGET[last].float())

    def draft(self, anchors: Mapping[int, int], choose: Callable[[int, Tensor], Tensor]) -> Any:
        last = torch.tensor(list(anchors.values()))
        for k in range(WIDTH):
            last = choose(k, OWN[last].float())
        return SimpleNamespace(confidence=torch.ones(len(anchors), WIDTH))

    def keep(self, slot: int, position: int) -> None:
        self.kept.append((slot, position))


def engine(
    rule: DraftAccept | None = DraftAccept.SHARED_NOISE, slots: int = 1, schedule: DraftSchedule | None = None
) -> Engine:
    limits = SchedulerLimits(max_num_seqs=slots, max_num_batched_tokens=999, max_model_len=64, look_back=0)
    runner: Any = TableRunner()
    return Engine(runner, limits, None if rule is None else Drafting(runner, WIDTH, rule, schedule))


def asking(seed: int = 1, number: int = 0, **values: Any) -> Request:
    given = {name: values.pop(name) for name in ("stop_watcher", "constraint") if name in values}
    params = SamplingParams(**{"max_tokens": 12, "ignore_eos": True, "logprobs": 1, **values})
    return Request(request_id=number, prompt_ids=(START,), params=params, seed=seed, eos_token_id=EOS, **given)


def run(tested: Engine, *asked: Request) -> list[Any]:
    for one in asked:
        tested.add(one)
    events: list[Any] = []
    while tested.num_unfinished:
        events += tested.step()
        tested.scheduler.check_integrity()
    return events


def answered(asked: Request, rule: DraftAccept | None = DraftAccept.SHARED_NOISE) -> list[Any]:
    return [(event.token, event.finish_reason) for event in run(engine(rule), asked)]


@pytest.mark.parametrize("values", [{}, {"temperature": 0}, {"ignore_eos": False}, {"stop_token_ids": (2,)}])
def test_events_are_those_of_an_engine_without_drafts(values: dict[str, Any]) -> None:
    num_accepted = 0
    for seed in range(40):
        asked, plain = asking(seed, **values), asking(seed, **values)
        assert answered(asked) == answered(plain, None)
        assert asked.output_ids == plain.output_ids
        num_accepted += asked.num_accepted_tokens
    assert num_accepted > 20


@pytest.mark.parametrize("max_tokens", range(1, 10))
def test_an_answer_ends_at_its_length_inside_a_block_and_drafts_for_no_token_behind_it(max_tokens: int) -> None:
    asked = asking(max_tokens=max_tokens)
    tested = engine()
    events = run(tested, asked)
    assert [event.finish_reason for event in events] == [None] * (max_tokens - 1) + [FinishReason.LENGTH]
    runner: Any = tested.runner
    assert sum(runner.num_rows) <= 1 + max_tokens + asked.num_draft_tokens - asked.num_accepted_tokens
    assert tested.stats.num_block_tokens <= max_tokens


@dataclass(slots=True)
class Watcher:
    """Ends an answer with a token at a place."""

    last: int
    seen: list[int] = field(default_factory=list)

    def push(self, token_id: int) -> bool:
        self.seen.append(token_id)
        return len(self.seen) == self.last


def test_a_watcher_sees_the_tokens_of_the_answer_and_no_other() -> None:
    for last in range(1, 9):
        for seed in range(5):
            watcher = Watcher(last)
            asked = asking(seed, stop_watcher=watcher)
            tested = engine()
            events = run(tested, asked)
            assert watcher.seen == asked.output_ids == [event.token.token_id for event in events]
            assert len(watcher.seen) == last
            assert asked.finish_reason is FinishReason.STOP
            assert asked.num_accepted_tokens <= last
            assert tested.scheduler._pages.num_free == tested.scheduler._pages.num_pages


@dataclass(slots=True)
class NeverTwice:
    """A constraint with a memory: no token twice in a row, and 0 only behind 1."""

    seen: list[int] = field(default_factory=list)

    def allowed(self) -> NDArray[np.bool_]:
        allowed = np.ones(VOCAB, dtype=np.bool_)
        if self.seen:
            allowed[self.seen[-1]] = False
        allowed[0] = self.seen[-1:] == [1]
        return allowed

    def push(self, token_id: int) -> None:
        assert self.allowed()[token_id], "a token that the constraint forbids"
        self.seen.append(token_id)


@pytest.mark.parametrize("rule", list(DraftAccept), ids=lambda rule: rule.value)
def test_a_constraint_advances_token_by_token_inside_a_block(rule: DraftAccept) -> None:
    num_accepted = 0
    for seed in range(40):
        constraint = NeverTwice()
        asked = asking(seed, constraint=constraint)
        found = answered(asked, rule)
        assert constraint.seen == asked.output_ids
        num_accepted += asked.num_accepted_tokens
        if rule is DraftAccept.SHARED_NOISE:
            assert found == answered(asking(seed, constraint=NeverTwice()), None)
    assert num_accepted > 20


@pytest.mark.parametrize("rule", list(DraftAccept), ids=lambda rule: rule.value)
def test_nothing_is_asked_behind_an_end(rule: DraftAccept) -> None:
    @dataclass(slots=True)
    class Ended(NeverTwice):
        def allowed(self) -> NDArray[np.bool_]:
            assert EOS not in self.seen, "asked behind the end"
            return np.ones(VOCAB, dtype=np.bool_)

    ended = 0
    for seed in range(60):
        asked = asking(seed, constraint=Ended(), ignore_eos=False)
        answered(asked, rule)
        assert EOS not in asked.output_ids[:-1]
        ended += asked.output_ids[-1] == EOS and asked.num_accepted_tokens > 0
    assert ended > 5


def test_rows_of_rejected_drafts_are_taken_back() -> None:
    tested = engine()
    asked = asking(3)
    tested.add(asked)
    tested.step()
    runner: Any = tested.runner
    position = 1
    while tested.num_unfinished:
        events = tested.step()
        position += len(events)
        if asked.finish_reason is None:
            assert runner.kept[-1] == (0, position)


def test_companions_and_schedules_leave_an_answer() -> None:
    expected = {seed: [token for token, _ in answered(asking(seed), None)] for seed in range(12)}
    ticks = iter(range(10**6))
    for schedule in (None, DraftSchedule(WIDTH, clock=lambda: float(next(ticks)))):
        tested = engine(slots=5, schedule=schedule)
        events = run(tested, *(asking(seed, seed) for seed in range(12)))
        for seed, tokens in expected.items():
            assert [event.token for event in events if event.request_id == seed] == tokens
        assert tested.stats.num_draft_blocks > 0


def test_logits_that_are_no_numbers_are_named_inside_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    tested = engine()
    asked = asking(3)
    tested.add(asked)
    tested.step()

    def broken(self: TableRunner, plan: StepPlan) -> Any:
        return SimpleNamespace(logits=torch.full((plan.num_rows, VOCAB), torch.nan))

    monkeypatch.setattr(TableRunner, "run", broken)
    with pytest.raises(ProtocolError, match="logits at position 2"):
        tested.step()
    assert asked.finish_reason is FinishReason.ABORT


NUM_TEXTS, POSITIONS, MOST = 600, 3, 62.5
"""MOST: chi-square of 33 cells; 0.1 % of right texts lie above, those of a rule that accepts everything at 400."""


def texts(rule: DraftAccept | None, **values: Any) -> np.ndarray:
    tested = engine(rule, slots=60)
    asked = [asking(seed, seed, max_tokens=POSITIONS + 2, logprobs=None, **values) for seed in range(NUM_TEXTS)]
    run(tested, *asked)
    return np.array([one.output_ids[1 : POSITIONS + 1] for one in asked])


def chi_square(found: np.ndarray) -> float:
    """Distance of the three tokens of first blocks from what the target's table says of them."""
    step = TARGET.float().double().softmax(1).numpy()
    likely = (step[START] @ step)[:, None, None] * step[:, :, None] * step[None, :, :]
    counts = np.zeros(likely.shape)
    np.add.at(counts, tuple(found.T), 1)
    expected, seen = NUM_TEXTS * likely.flatten(), counts.flatten()
    # Cells that are seldom hit are counted as one.
    often = expected >= 5
    pairs = [*zip(seen[often], expected[often], strict=True), (seen[~often].sum(), expected[~often].sum())]
    return float(sum((got - wanted) ** 2 / wanted for got, wanted in pairs))


@pytest.mark.parametrize("rule", [None, *DraftAccept], ids=lambda rule: "off" if rule is None else rule.value)
def test_drafted_texts_are_drawn_from_the_target(rule: DraftAccept | None) -> None:
    assert chi_square(texts(rule)) < MOST


def test_an_engine_that_accepts_every_draft_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speculative, "acceptance", lambda *_: 1.0)
    assert chi_square(texts(DraftAccept.REJECTION)) > MOST


def test_rejection_is_greedy_at_temperature_0_and_accepts_more_above() -> None:
    asked, plain = asking(1, temperature=0), asking(1, temperature=0)
    assert answered(asked, DraftAccept.REJECTION) == answered(plain, None)
    counts = {}
    for rule in DraftAccept:
        tested = engine(rule, slots=30)
        run(tested, *(asking(seed, seed) for seed in range(60)))
        counts[rule] = tested.stats.num_block_tokens / tested.stats.num_draft_blocks
    assert 1.2 < counts[DraftAccept.SHARED_NOISE] < counts[DraftAccept.REJECTION]


def test_forced_drafts_take_the_place_of_own_ones() -> None:
    tested = engine()
    drafting = tested.drafting
    assert drafting is not None
    drafting.forced = lambda _, drafts: [0, 0][: len(drafts)]
    asked = asking(1)
    run(tested, asked)
    assert len(tested.stats.drafted_tokens) == 2
    assert asked.output_ids == [token.token_id for token, _ in answered(asking(1), None)]


def test_proposals_of_requests_that_left_are_forgotten() -> None:
    tested = engine(slots=2)
    for number in range(4):
        tested.add(asking(number, number))
    while tested.num_unfinished:
        tested.step()
        tested.abort(tested.scheduler._running[0].request.request_id if tested.scheduler._running else 0)
        assert tested.drafting is not None
        assert len(tested.drafting._proposals) <= 2
