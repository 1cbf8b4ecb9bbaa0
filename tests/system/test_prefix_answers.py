"""Answers of requests that begin behind cached pages and an image are those of a request that is alone, to the bit."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flash41.config.run import Profile
from flash41.engine.engine import Engine
from flash41.engine.load import LoadedModel
from flash41.engine.request import FinishReason, Request, SamplingParams
from helpers.answers import (
    EOS,
    Alone,
    Tokens,
    asking,
    assert_as_at_start,
    page_size,
    paged_engine,
    prompt,
    run,
    step,
)
from helpers.golden_judge import CHECKPOINT
from helpers.models import Models

LONGEST = 48
PARAMS = SamplingParams(max_tokens=3, ignore_eos=True, logprobs=3)
TWO = SamplingParams(max_tokens=2, ignore_eos=True, logprobs=3)


@pytest.fixture(scope="session")
def models(quick_models: Models) -> Models:
    return quick_models


@pytest.fixture(scope="module")
def alone() -> Alone:
    return Alone(LONGEST)


@pytest.fixture
def model(models: Models) -> LoadedModel:
    return models(CHECKPOINT, Profile.VENDOR)


def engine(model: LoadedModel, **values: int) -> Engine:
    return paged_engine(model, **{"longest": LONGEST, "num_images": 8, "spare": 8, **values})


def kept_tokens(tested: Engine) -> set[tuple[int, ...]]:
    """Token lists of all chains in the cache, from their first page to their last."""
    cache = tested.scheduler.reuse.cache
    assert cache is not None
    entries = {key: entry.key for key, entry in cache._entries.items()}
    parents = {key.parent for key in entries.values()}
    found = set()
    for page_hash, key in entries.items():
        if page_hash in parents:
            continue
        tokens: tuple[int, ...] = ()
        while True:
            tokens = key.content.token_ids + tokens
            if key.parent not in entries:
                break
            key = entries[key.parent]
        found.add(tokens)
    return found


POOLS = {
    (Profile.VENDOR, "tiny-a"): Profile.VENDOR.allowed_pools,
    (Profile.ATOM, "tiny-a"): Profile.ATOM.allowed_pools,
    (Profile.FP32, "tiny-a"): Profile.FP32.allowed_pools,
    (Profile.VENDOR, "second"): Profile.VENDOR.allowed_pools,
}


@pytest.mark.parametrize("case", POOLS, ids=lambda case: f"{case[0].value}-{case[1]}")
def test_a_hit_gives_the_bits_of_a_miss_in_every_pool(
    case: tuple[Profile, str], models: Models, second_checkpoint: Path, alone: Alone
) -> None:
    profile, name = case
    for pool in POOLS[case]:
        model = models(CHECKPOINT if name == "tiny-a" else second_checkpoint, profile, pool)
        page = page_size(model)
        text = prompt(7, 2 * page + 2)
        tested = engine(model)
        asked = [
            asking(0, text, TWO),
            asking(1, (*text, 9, 8, 7), TWO),
            asking(2, (*text[: page + 1], 5, 6), TWO),
        ]
        found = {one.request_id: run(tested, [one])[one.request_id] for one in asked}
        assert found == alone.all(model, asked), pool
        assert [one.num_cached_tokens for one in asked] == [0, 2 * page, 0]
        assert_as_at_start(tested)


def finished(model: LoadedModel, tested: Engine, length: int, num_tokens: int) -> tuple[int, ...]:
    """All ids of a request that has ended in an engine."""
    params = SamplingParams(max_tokens=num_tokens, ignore_eos=True)
    first = asking(0, prompt(3, length), params)
    run(tested, [first])
    return (*first.prompt_ids, *first.output_ids)


@pytest.mark.parametrize("interval", [1, 1000])
def test_resuming_anywhere_is_recomputing(interval: int, models: Models, checkpoint: Path, alone: Alone) -> None:
    model = models(checkpoint, Profile.VENDOR)
    page = page_size(model)
    tested = engine(model, interval=interval, num_images=12)
    ids = finished(model, tested, 3 * page + 1, 2 * page)
    total = len(ids)
    lengths = sorted({total, total - 1, total - 2, *(page * n + more for n in range(1, 5) for more in (0, 1))})
    hits = set()
    for number, length in enumerate(lengths, 1):
        one = asking(number, ids[:length], SamplingParams(max_tokens=1, ignore_eos=True, logprobs=3))
        assert run(tested, [one])[number] == alone(model, one), length
        hits.add(one.num_cached_tokens)
    boundaries = {page * n for n in range(1, 5)}
    # With rungs everywhere each boundary is resumed; without, the end of the prompt and those behind it.
    assert hits >= (boundaries if interval == 1 else {3 * page, 4 * page})
    assert hits <= {0, *boundaries, (total - 1) // page * page}


def test_a_continued_chat_hits_behind_the_answer(model: LoadedModel, alone: Alone) -> None:
    page, tested = page_size(model), engine(model)
    history, num_computed = prompt(5, page + 1), 0
    for turn in range(3):
        one = asking(turn, history, SamplingParams(max_tokens=page + 1, ignore_eos=True, logprobs=3))
        assert run(tested, [one])[turn] == alone(model, one)
        expected = num_computed // page * page
        assert one.num_cached_tokens == expected, "the whole of what was said before, but for the last page"
        num_computed = one.num_known - 1
        history = (*one.prompt_ids, *one.output_ids, 7 + turn)


class Word:
    """A stop watcher that ends an answer at its third token, as a stop string does."""

    def __init__(self) -> None:
        self.num_seen = 0

    def push(self, _: int) -> bool:
        self.num_seen += 1
        return self.num_seen == 3


def endings(model: LoadedModel) -> dict[str, Request]:
    """Requests that end by EOS, by a stop token, by a stop string and by their length, all within a page or two."""
    page = page_size(model)
    text = prompt(11, 2 * page - 1)
    bias = {EOS: 100.0}
    return {
        "eos": asking(0, text, SamplingParams(max_tokens=9, logit_bias=bias)),
        "stop token": asking(0, text, SamplingParams(max_tokens=9, stop_token_ids=(EOS,), logit_bias=bias)),
        "stop string": asking(0, text, SamplingParams(max_tokens=9, ignore_eos=True), stop_watcher=Word()),
        "length": asking(0, text, SamplingParams(max_tokens=3, ignore_eos=True)),
    }


@pytest.mark.parametrize("name", ["eos", "stop token", "stop string", "length"])
def test_a_request_that_ended_leaves_exactly_the_tokens_whose_rows_exist(
    name: str, model: LoadedModel, alone: Alone
) -> None:
    tested, page, one = engine(model), page_size(model), endings(model)[name]
    run(tested, [one])
    assert one.finish_reason is (FinishReason.LENGTH if name == "length" else FinishReason.STOP)
    ids = (*one.prompt_ids, *one.output_ids)
    num_rows = len(ids) - 1  # the last token was chosen and never forwarded
    assert kept_tokens(tested) == {ids[: num_rows // page * page]}
    again = asking(1, (*ids, 9), PARAMS)
    assert run(tested, [again])[1] == alone(model, again)
    assert again.num_cached_tokens == num_rows // page * page


def test_two_texts_that_part_share_what_is_before_once_it_was_wanted_twice(model: LoadedModel, alone: Alone) -> None:
    page, tested = page_size(model), engine(model)
    system = prompt(13, 2 * page)
    asked = [asking(number, (*system, *prompt(20 + number, page + 1)), PARAMS) for number in range(4)]
    for one in asked:
        assert run(tested, [one])[one.request_id] == alone(model, one)
    # The second finds the pages and no image; it makes one, which the third resumes.
    assert [one.num_cached_tokens for one in asked] == [0, 0, 2 * page, 2 * page]


def test_salts_share_nothing(model: LoadedModel, alone: Alone) -> None:
    tested, text = engine(model), prompt(17, 2 * page_size(model) + 1)
    salts = (b"a", b"b", b"a", b"", b"")
    asked = [asking(number, text, PARAMS, cache_salt=salt, seed=5) for number, salt in enumerate(salts)]
    for one in asked:
        assert run(tested, [one])[one.request_id] == alone(model, one)
    assert [bool(one.num_cached_tokens) for one in asked] == [False, False, True, False, True]


def test_a_request_that_gave_way_resumes_from_its_own_pages(model: LoadedModel, alone: Alone) -> None:
    page = page_size(model)
    params = SamplingParams(max_tokens=page + 2, ignore_eos=True, logprobs=3)
    tested = engine(model, longest=4 * page, spare=3, slots=3, num_images=6)
    asked = [asking(number, prompt(number, 2 * page - number), params) for number in range(3)]
    assert run(tested, asked) == alone.all(model, asked)
    assert tested.scheduler.num_preemptions >= 1
    assert_as_at_start(tested)


def test_the_same_prompt_twice_in_one_step_is_kept_once(model: LoadedModel, alone: Alone) -> None:
    page, tested = page_size(model), engine(model, rows=64)
    asked = [asking(number, prompt(23, 2 * page + 1), PARAMS, seed=9) for number in range(3)]
    assert run(tested, asked) == alone.all(model, asked)
    cache = tested.scheduler.reuse.cache
    assert cache is not None
    assert cache.num_pages == 2
    assert_as_at_start(tested)


def texts(dice: np.random.Generator, page: int, count: int) -> list[tuple[int, ...]]:
    """Prompts that share beginnings: each continues a random part of an earlier one."""
    made: list[tuple[int, ...]] = [prompt(int(dice.integers(100)), 2 * page + 1)]
    while len(made) < count:
        old = made[int(dice.integers(len(made)))]
        kept = old[: int(dice.integers(1, len(old) + 1))]
        made.append((*kept, *dice.integers(3, 9, int(dice.integers(1, page + 2))).tolist())[: LONGEST - 9])
    return made


@given(data=st.data())
@settings(max_examples=2, deadline=None)
def test_nothing_changes_an_answer(data: st.DataObject, models: Models, checkpoint: Path, alone: Alone) -> None:
    model = models(checkpoint, Profile.VENDOR)
    tested = engine(
        model,
        longest=LONGEST,
        spare=data.draw(st.integers(0, 6), label="spare pages"),
        slots=data.draw(st.integers(2, 4), label="slots"),
        rows=data.draw(st.integers(2, 40), label="rows"),
        num_images=data.draw(st.integers(1, 6), label="images"),
        interval=data.draw(st.integers(1, 3), label="interval"),
    )
    dice = np.random.default_rng(data.draw(st.integers(0, 3), label="texts"))
    asked = [asking(number, ids, TWO) for number, ids in enumerate(texts(dice, page_size(model), 5))]
    seen: dict[int, Tokens] = {}
    doomed = data.draw(st.sets(st.integers(0, 4), max_size=2), label="aborted")
    for one in asked:
        tested.add(one)
        for _ in range(data.draw(st.integers(0, 6), label="steps")):
            step(tested, seen)
        if one.request_id in doomed:
            tested.abort(one.request_id)
    while tested.num_unfinished:
        step(tested, seen)
    for one in asked:
        expected, got = alone(model, one), seen.get(one.request_id, [])
        assert got == (expected[: len(got)] if one.finish_reason is FinishReason.ABORT else expected)
    assert_as_at_start(tested)


def test_a_step_that_broke_off_leaves_nothing_behind(
    model: LoadedModel, alone: Alone, monkeypatch: pytest.MonkeyPatch
) -> None:
    page, tested = page_size(model), engine(model)
    text = prompt(29, 2 * page + 2)
    run(tested, [asking(0, text, PARAMS)])

    class BrokenError(Exception):
        pass

    def broken(*_: object) -> None:
        raise BrokenError

    doomed = asking(1, (*text, 3, 4), PARAMS)
    tested.add(doomed)
    with monkeypatch.context() as patch:
        patch.setattr(tested.runner.images, "restore", broken)
        with pytest.raises(BrokenError):
            tested.step()
    assert doomed.finish_reason is FinishReason.ABORT
    tested.scheduler.check_integrity()
    again = asking(2, (*text, 3, 4), PARAMS)
    assert run(tested, [again])[2] == alone(model, again)
    assert again.num_cached_tokens == 2 * page
    assert_as_at_start(tested)
