"""Answers from a pool of pages are those of a request that is alone with contiguous caches, to the bit.

Pools begin full of NaN, so that a row read before it was written would show.
"""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flash41.config.run import PoolDtype, PoolFormat, Profile
from flash41.engine.request import FinishReason, SamplingParams
from helpers.answers import LENGTHS, Alone, Tokens, assert_as_at_start, page_size, paged_engine, request, run, step
from helpers.backends import REFERENCE
from helpers.golden_judge import CHECKPOINT
from helpers.model_fixtures import models_of
from helpers.models import Models


@pytest.fixture(scope="session")
def models(quick_models: Models) -> Models:
    return quick_models


@pytest.fixture(scope="module")
def alone() -> Alone:
    return Alone()


POOLS = {
    (Profile.VENDOR, "tiny-a"): Profile.VENDOR.allowed_pools,
    (Profile.ATOM, "tiny-a"): (PoolFormat(main=PoolDtype.BF16, index=PoolDtype.FP8),),
    (Profile.FP32, "tiny-a"): Profile.FP32.allowed_pools,
    # Tiles of three rows have no layout for FP8 keys.
    (Profile.VENDOR, "second"): (
        PoolFormat(main=PoolDtype.BF16, index=PoolDtype.FP4),
        PoolFormat(main=PoolDtype.FP4, index=PoolDtype.BF16),
    ),
}


@pytest.mark.parametrize("case", POOLS, ids=lambda case: f"{case[0].value}-{case[1]}")
def test_every_pool_gives_the_bits_of_contiguous_caches_although_a_request_gives_way(
    case: tuple[Profile, str], models: Models, second_checkpoint: Path, alone: Alone
) -> None:
    profile, name = case
    params = SamplingParams(max_tokens=3, ignore_eos=True, logprobs=3)
    for pool in POOLS[case]:
        model = models(CHECKPOINT if name == "tiny-a" else second_checkpoint, profile, pool)
        # Both fill a page with their prompts; their next tokens need two pages more, and there is none.
        asked = [request(number, page_size(model), params) for number in range(2)]
        tested = paged_engine(model, longest=2 * page_size(model), slots=2)
        found = run(tested, asked)
        assert found == alone.all(model, asked), pool
        assert found[0] != found[1]
        assert tested.scheduler.num_preemptions >= 1
        assert_as_at_start(tested)


@pytest.mark.parametrize(("backend", "name"), [("cpu", "tiny-a"), ("cpu", "second"), (REFERENCE, "tiny-a")])
def test_answers_outlive_many_preemptions(backend: str, name: str, second_checkpoint: Path, alone: Alone) -> None:
    directory = CHECKPOINT if name == "tiny-a" else second_checkpoint
    model, asked = models_of(backend)(directory, Profile.VENDOR), [request(number) for number in range(len(LENGTHS))]
    tested = paged_engine(model)
    assert run(tested, asked) == alone.all(model, asked)
    assert tested.scheduler.num_preemptions >= 3
    assert_as_at_start(tested)


@given(data=st.data())
@settings(max_examples=3, deadline=None)
def test_neither_arrival_nor_chunks_nor_pages_change_an_answer(
    data: st.DataObject, models: Models, alone: Alone
) -> None:
    model = models(CHECKPOINT, Profile.VENDOR)
    tested = paged_engine(
        model,
        spare=data.draw(st.integers(0, 4), label="spare pages"),
        slots=data.draw(st.integers(2, 4), label="slots"),
        rows=data.draw(st.integers(2, 24), label="rows"),
        factor=data.draw(st.integers(1, 2), label="page"),
    )
    asked, seen = [request(number) for number in range(len(LENGTHS))], dict[int, Tokens]()
    for number in data.draw(st.permutations(range(len(LENGTHS))), label="order"):
        tested.add(asked[number])
        for _ in range(data.draw(st.integers(0, 3), label="steps")):
            step(tested, seen)
    while tested.num_unfinished:
        step(tested, seen)
    assert seen == alone.all(model, asked)
    assert_as_at_start(tested)


@given(data=st.data())
@settings(max_examples=3, deadline=None)
def test_an_abort_at_any_moment_frees_everything_and_changes_no_other_answer(
    data: st.DataObject, models: Models, alone: Alone
) -> None:
    model = models(CHECKPOINT, Profile.VENDOR)
    tested, seen = paged_engine(model, spare=data.draw(st.integers(0, 2), label="spare")), dict[int, Tokens]()
    asked = [request(number) for number in range(len(LENGTHS))]
    for one in asked:
        tested.add(one)
    doomed = data.draw(st.lists(st.sampled_from(range(len(LENGTHS))), min_size=1, max_size=4, unique=True))
    for number in doomed:
        for _ in range(data.draw(st.integers(0, 9), label="steps")):
            step(tested, seen)
        tested.abort(number)
        tested.scheduler.check_integrity()
    while tested.num_unfinished:
        step(tested, seen)
    assert_as_at_start(tested)
    for one in asked:
        expected, got = alone(model, one), seen.get(one.request_id, [])
        assert got == (expected[: len(got)] if one.finish_reason is FinishReason.ABORT else expected)


def test_after_two_hundred_requests_the_pool_is_as_at_start_and_answers_as_then(models: Models, alone: Alone) -> None:
    model, random = models(CHECKPOINT, Profile.VENDOR), np.random.default_rng(5)
    tested, seen, num_aborted = paged_engine(model, spare=9, slots=12, rows=64), dict[int, Tokens](), 0
    for number in range(200):
        params = SamplingParams(max_tokens=int(random.integers(1, 6)), ignore_eos=True)
        tested.add(request(number, int(random.integers(1, 7)), params))
        if number % 8 == 7:
            step(tested, seen)
            num_aborted += sum(len(tested.abort(int(one))) for one in random.integers(0, number + 1, 4))
    while tested.num_unfinished:
        step(tested, seen)
    assert num_aborted > 5
    assert tested.scheduler.num_preemptions > 5
    assert_as_at_start(tested)
    probe = request(0)
    assert run(tested, [probe]) == alone.all(model, [probe])
    assert_as_at_start(tested)
