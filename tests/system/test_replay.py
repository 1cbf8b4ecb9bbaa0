"""Bounded replay: what stays exact, what is cut and where, and that nothing depends on company, chunks or hits."""

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flash41.cache.paged import PagedStore
from flash41.config.run import Profile
from flash41.engine.engine import Engine
from flash41.engine.load import LoadedModel
from flash41.engine.plan import PlannedSpan, StepPlan
from flash41.engine.replay import Replay
from flash41.engine.request import Request, SamplingParams
from flash41.engram.vocabulary import token_map
from helpers.answers import POISON, Alone, Tokens, asking, page_size, paged_plan, prompt, run, step
from helpers.golden_judge import CHECKPOINT
from helpers.models import Models
from oracles.text_model import Model

LONGEST = 64
SHARP = 2e-6
"""Relative error of a row in profile `fp32`."""
PARAMS = SamplingParams(max_tokens=3, ignore_eos=True, logprobs=3)


@pytest.fixture(scope="session")
def models(quick_models: Models) -> Models:
    return quick_models


@pytest.fixture
def model(models: Models) -> LoadedModel:
    return models(CHECKPOINT, Profile.VENDOR)


@pytest.fixture(scope="module")
def alone() -> Alone:
    return Alone(LONGEST)


def window(model: LoadedModel) -> int:
    return model.config.attention.window


def engine(model: LoadedModel, *, decoder: bool = False, prefix: bool = False, **values: int) -> Engine:
    plan = paged_plan(model, **{"longest": LONGEST, "num_images": 8, "spare": 8, **values})
    plan = replace(plan, decoder_replay=decoder, prefix_replay=prefix, num_images=0 if prefix else plan.num_images)
    runner = model.planned_runner(plan)
    assert isinstance(runner.store, PagedStore)
    runner.store.pool.memory.fill_(POISON)
    if runner.images is not None:
        runner.images.memory.fill_(POISON)
    return Engine(runner, model.limits(plan))


def one_by_one(tested: Engine, *asked: Request) -> list[Tokens]:
    return [run(tested, [one])[one.request_id] for one in asked]


# Against the oracle, which shares no code and knows nothing of chunks, slots and pages.


def oracle(model: LoadedModel) -> Model:
    classes: list[int] = token_map(CHECKPOINT / "tokenizer.json", model.config.vocab_size).tolist()
    return Model(model.directory, classes)


def distance(got: torch.Tensor, expected: Any) -> float:
    return float(np.linalg.norm(got.numpy() - expected) / np.linalg.norm(expected))


def test_decoder_replay_is_what_the_oracle_computes_with_cut_windows(models: Models, checkpoint: Path) -> None:
    model = models(checkpoint, Profile.FP32)
    length = 2 * window(model) + 3
    ids, tail = prompt(30, length + 2), length - window(model)
    judge = oracle(model)
    exact = judge.logits(ids)
    last = max(model.config.attention.kv_source_layer_ids)
    judge.window_starts = dict.fromkeys(range(last + 1, model.config.num_layers), tail)
    expected = judge.logits(ids)
    runner, look_back = model.runner(1, LONGEST), model.config.engram.max_ngram - 1
    for start, end in ((0, 5), (5, length), (length, length + 1), (length + 1, length + 2)):
        span = PlannedSpan(
            request_id=0,
            slot=0,
            start=start,
            ids=ids[start:end],
            history=ids[max(0, start - look_back) : start],
            samples=end >= length,
            tail_start=tail,
        )
        logits = runner.run(runner.stage(StepPlan(spans=(span,)))).logits
        if end >= length:
            assert distance(logits[-1], expected[end - 1]) < SHARP
            assert distance(logits[-1], exact[end - 1]) > 100 * SHARP


def test_prefix_replay_is_what_the_oracle_computes_behind_given_rows(models: Models, checkpoint: Path) -> None:
    model = models(checkpoint, Profile.FP32)
    page = page_size(model)
    hit = (window(model) // page + 1) * page
    ids = prompt(31, hit + 3)
    judge = oracle(model)
    exact = judge.logits(ids)
    ratios = model.config.attention.compress_ratios
    judge.given = {owner: tuple(part[: hit // ratios[owner]] for part in rows) for owner, rows in judge.owned.items()}
    judge.window_starts = dict.fromkeys(range(model.config.num_layers), hit - window(model))
    expected = judge.logits(ids)[-1]
    got = by_hand(model, ids, hit)
    assert distance(got, expected) < SHARP
    assert distance(got, exact[-1]) > 100 * SHARP


# Decoder replay.


def tail_by_hand(model: LoadedModel, ids: tuple[int, ...], rows: int) -> torch.Tensor:
    """Logits of the last row of a prompt whose late layers see only its tail, in steps of `rows` rows."""
    runner, tail = model.runner(1, LONGEST), max(0, len(ids) - window(model))
    for start in range(0, len(ids), rows):
        end = min(start + rows, len(ids))
        span = PlannedSpan(
            request_id=0,
            slot=0,
            start=start,
            ids=ids[start:end],
            history=ids[max(0, start - model.config.engram.max_ngram + 1) : start],
            samples=end == len(ids),
            tail_start=tail,
        )
        logits = runner.run(runner.stage(StepPlan(spans=(span,)))).logits
    return logits[-1]


def test_a_prompt_no_longer_than_a_window_is_exact(model: LoadedModel, alone: Alone) -> None:
    for length in (1, window(model) - 1, window(model)):
        one = asking(0, prompt(1, length), PARAMS)
        assert one_by_one(engine(model, decoder=True), one) == [alone(model, one)]


def test_a_longer_prompt_is_not_and_its_bits_are_those_of_any_chunks(models: Models, checkpoint: Path) -> None:
    model = models(checkpoint, Profile.VENDOR)
    ids = prompt(2, 3 * window(model) + 1)
    expected = tail_by_hand(model, ids, len(ids))
    exact = model.runner(1, LONGEST)
    span = PlannedSpan(request_id=0, slot=0, start=0, ids=ids, history=(), samples=True)
    assert not torch.equal(exact.run(exact.stage(StepPlan(spans=(span,)))).logits[-1], expected)
    for rows in (1, 2, window(model), window(model) + 3):
        assert torch.equal(tail_by_hand(model, ids, rows), expected), rows


def test_late_layers_compute_no_other_rows(model: LoadedModel) -> None:
    ids, tail = prompt(3, 4 * window(model)), 3 * window(model)
    last = max(model.config.attention.kv_source_layer_ids)
    seen: dict[str, int] = {}

    class Counting:
        active = True

        def __call__(self, point: str, value: torch.Tensor) -> None:
            seen[point] = len(value)

    runner = model.runner(1, LONGEST)
    span = PlannedSpan(request_id=0, slot=0, start=0, ids=ids, history=(), samples=True, tail_start=tail)
    runner.run(runner.stage(StepPlan(spans=(span,))), Counting())
    assert seen[f"L{last}.ffn.out"] == len(ids)
    assert seen[f"L{last + 1}.ffn.out"] == window(model)
    # A part of the prompt before its tail leaves them out altogether.
    seen.clear()
    first = replace(span, ids=ids[:tail], samples=False)
    runner.run(runner.stage(StepPlan(spans=(first,))), Counting())
    assert f"L{last}.ffn.out" in seen
    assert f"L{last + 1}.ffn.out" not in seen


def test_compressed_rows_are_never_cut(model: LoadedModel) -> None:
    ids = prompt(4, 4 * window(model))
    pools = []
    for decoder in (False, True):
        tested = engine(model, decoder=decoder, rows=64)
        run(tested, [asking(0, ids, SamplingParams(max_tokens=1, ignore_eos=True))])
        store = tested.runner.store
        assert isinstance(store, PagedStore)
        pools.append(store.pool.memory[: store.pool.placement.state_start].clone())
    assert torch.equal(*pools)


@pytest.fixture(scope="module")
def tailed(models: Models) -> dict[tuple[int, ...], Tokens]:
    """Prompts, some of which begin alike, and what each is answered with decoder replay in an engine of its own."""
    model = models(CHECKPOINT, Profile.VENDOR)
    page, wide = page_size(model), window(model)
    system = prompt(5, 2 * page + wide)
    texts = [system, (*system, *prompt(6, wide)), prompt(7, wide + 3), (*system[: page + 1], *prompt(8, wide + 2))]
    asked = [asking(number, ids, PARAMS) for number, ids in enumerate(texts)]
    return {tuple(one.prompt_ids): one_by_one(engine(model, decoder=True, rows=64), one)[0] for one in asked}


@given(data=st.data())
@settings(max_examples=2, deadline=None)
def test_answers_of_decoder_replay_depend_on_nothing_but_the_request(
    data: st.DataObject, models: Models, tailed: dict[tuple[int, ...], Tokens]
) -> None:
    asked = [asking(number, ids, PARAMS) for number, ids in enumerate(tailed)]
    tested = engine(
        models(CHECKPOINT, Profile.VENDOR),
        decoder=True,
        rows=data.draw(st.integers(2, 40), label="rows"),
        spare=data.draw(st.integers(0, 3), label="spare"),
        slots=data.draw(st.integers(2, 4), label="slots"),
    )
    seen: dict[int, Tokens] = {}
    for number in data.draw(st.permutations(range(len(asked))), label="order"):
        tested.add(asked[number])
        for _ in range(data.draw(st.integers(0, 4), label="steps")):
            step(tested, seen)
    while tested.num_unfinished:
        step(tested, seen)
    assert seen == {one.request_id: tailed[tuple(one.prompt_ids)] for one in asked}


def test_a_request_with_decoder_replay_resumes_before_its_own_tail(model: LoadedModel) -> None:
    page, wide, tested = page_size(model), window(model), engine(model, decoder=True)
    text = prompt(9, 4 * page + wide + 1)
    first, again = asking(0, text, PARAMS, seed=3), asking(1, text, PARAMS, seed=3)
    assert len(set(map(str, one_by_one(tested, first, again)))) == 1
    assert again.num_cached_tokens == (len(text) - wide) // page * page > 0
    short = asking(2, text[:wide], PARAMS)
    run(tested, [short])
    assert short.num_cached_tokens == 0


# Prefix replay.


def by_hand(model: LoadedModel, ids: tuple[int, ...], hit: int) -> torch.Tensor:
    """Last logits behind a hit: pages from a whole run, then the last window and the rest into an emptied slot."""
    runner, look_back = model.runner(1, LONGEST), model.config.engram.max_ngram - 1
    whole = PlannedSpan(request_id=0, slot=0, start=0, ids=ids[:hit], history=(), samples=True)
    runner.run(runner.stage(StepPlan(spans=(whole,))))
    start = hit - window(model)
    for ring in runner.store.windows:
        wide = runner.store.shape.ring
        ring.write(torch.arange(wide), torch.full((wide, runner.store.shape.channels), torch.nan, dtype=model.dtype))
    rest = PlannedSpan(
        request_id=0,
        slot=0,
        start=start,
        ids=ids[start:],
        history=ids[max(0, start - look_back) : start],
        samples=True,
        window_start=start,
        planes_end=hit,
    )
    return runner.run(runner.stage(StepPlan(spans=(rest,)))).logits[-1]


def test_a_hit_recomputes_one_window_and_reads_the_pages_as_they_are(model: LoadedModel, alone: Alone) -> None:
    page, wide = page_size(model), window(model)
    text = prompt(10, 4 * page)
    tested = engine(model, prefix=True, rows=64)
    first = asking(0, text, PARAMS)
    assert one_by_one(tested, first) == [alone(model, first)], "nothing is cached yet: exact"
    store = tested.runner.store
    assert isinstance(store, PagedStore)
    cache = tested.scheduler.reuse.cache
    assert cache is not None
    filed = [entry.page_id for entry in cache._entries.values()]
    rows = {owner: _rows(store, owner, filed) for owner in store.main}
    other = asking(1, (*text, 5, 6, 7), PARAMS)
    (found,) = one_by_one(tested, other)
    assert other.num_cached_tokens == 4 * page - wide
    assert tested.stats.replayed_tokens == wide
    expected = by_hand(model, other.prompt_ids, 4 * page).double().log_softmax(0)
    assert found[0].logprob == float(expected[found[0].token_id])
    assert found[0] != alone(model, other)[0], "approximate, or this test proves nothing"
    assert all(torch.equal(_rows(store, owner, filed), before) for owner, before in rows.items())


def _rows(store: PagedStore, owner: int, pages: list[int]) -> torch.Tensor:
    per_page = store.block_size // store.shape.owner_ratios[owner]
    numbers = torch.cat([torch.arange(page * per_page, (page + 1) * per_page) for page in pages])
    return torch.cat((store.main[owner].read(numbers).flatten(), store.index[owner].read(numbers).flatten()))


@pytest.mark.parametrize("rows", [1, 3, 7])
def test_chunks_do_not_matter_behind_a_hit(rows: int, model: LoadedModel) -> None:
    page = page_size(model)
    text = prompt(11, 3 * page)
    answers = []
    for budget in (64, rows):
        tested = engine(model, prefix=True, rows=budget)
        asked = [asking(0, text, PARAMS), asking(1, (*text, *prompt(12, 6)), PARAMS)]
        answers.append(one_by_one(tested, *asked))
        assert asked[1].num_cached_tokens == 3 * page - window(model)
    assert answers[0] == answers[1]


def test_a_hit_of_no_more_than_a_window_is_not_worth_it(model: LoadedModel, alone: Alone) -> None:
    page, wide, tested = page_size(model), window(model), engine(model, prefix=True)
    short = wide // page * page
    assert short > 0
    text = prompt(13, short)
    asked = [asking(0, text, PARAMS), asking(1, (*text, 4, 5), PARAMS)]
    assert one_by_one(tested, *asked) == [alone(model, one) for one in asked]
    assert [one.num_cached_tokens for one in asked] == [0, 0]


def test_both_at_once_run_and_give_everything_back(model: LoadedModel) -> None:
    page, tested = page_size(model), engine(model, prefix=True, decoder=True, rows=9, spare=2, slots=3)
    text = prompt(14, 5 * page)
    asked = [asking(number, (*text, *prompt(20 + number, 2 + number)), PARAMS) for number in range(5)]
    found = run(tested, asked)
    assert all(len(tokens) == 3 for tokens in found.values())
    assert all(np.isfinite(token.logprob or 0.0) for tokens in found.values() for token in tokens)
    assert tested.stats.num_hits > 0
    assert tested.stats.approximate == ("decoder-replay", "prefix-replay")
    cache = tested.scheduler.reuse.cache
    assert cache is not None
    assert cache.make_room(tested.scheduler._pages.num_pages)


def test_every_mode_has_a_layout_of_its_own(model: LoadedModel) -> None:
    plan = paged_plan(model, num_images=2)
    names = set()
    for decoder, prefix in itertools.product((False, True), repeat=2):
        limits = model.limits(replace(plan, decoder_replay=decoder, prefix_replay=prefix))
        assert limits.reuse is not None
        assert limits.replay == Replay(window=window(model), decoder=decoder, prefix=prefix)
        names.add(limits.reuse.layout_id)
    assert len(names) == 4
