"""Answers with drafts are those without, token for token and to the bit of their log-probabilities.

Drafts are the drafter's own, or forced: n right tokens and a wrong one, for every n.
"""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random

import pytest
import torch
from torch import Tensor

from flash41.cache.paged import PagedStore
from flash41.cache.pool import Pool
from flash41.config.run import Draft, PoolFormat, Profile
from flash41.engine.engine import Engine
from flash41.engine.load import LoadedModel, load_model
from flash41.engine.request import Request, SamplingParams
from helpers.answers import POISON, Tokens, asking, assert_as_at_start, limits, page_size, paged_engine, prompt, run
from helpers.checkpoints import read_raw, shard_bytes, tiny_copy
from helpers.drafted import VOCAB, drafting_engine, replaced_drafts, right_drafts
from helpers.golden_judge import CHECKPOINT
from helpers.models import Models

PARAMS = SamplingParams(max_tokens=7, ignore_eos=True, logprobs=2)
GREEDY = SamplingParams(max_tokens=7, ignore_eos=True, logprobs=2, temperature=0)
WIDTH = 5
POOLS = {
    f"{profile.value}-{pool.main.value}-{pool.index.value}": (profile, pool)
    for profile in (Profile.VENDOR, Profile.ATOM, Profile.FP32)
    for pool in profile.allowed_pools
    if profile is not Profile.ATOM or pool.main is profile.default_pool.main
}


def plain(model: LoadedModel, asked: Sequence[Request]) -> dict[int, Tokens]:
    """Answers without drafts, from contiguous caches without rings for them."""
    longest = max(len(one.prompt_ids) + one.params.max_tokens for one in asked)
    engine = Engine(model.runner(len(asked), longest), limits(model, len(asked), 64, longest))
    return run(engine, [asking(one.request_id, one.prompt_ids, one.params) for one in asked])


class Answers:
    """Answers without drafts, computed once for all pools that store the same numbers."""

    def __init__(self) -> None:
        self._kept: dict[object, dict[int, Tokens]] = {}

    def __call__(self, model: LoadedModel, asked: Sequence[Request]) -> Mapping[int, Tokens]:
        index = model.pool.index if model.profile is Profile.ATOM else None
        key = (model.directory, model.profile, index, *((one.prompt_ids, one.params.temperature) for one in asked))
        if key not in self._kept:
            self._kept[key] = plain(model, asked)
        return self._kept[key]


@pytest.fixture(scope="module")
def answers() -> Answers:
    return Answers()


@pytest.fixture(scope="session")
def models(quick_models: Models) -> Models:
    return quick_models


@pytest.fixture
def model(models: Models) -> LoadedModel:
    return models(CHECKPOINT, Profile.VENDOR)


def mixed(lengths: Sequence[int]) -> list[Request]:
    """Requests of these lengths, every other one at temperature 0."""
    return [asking(n, prompt(n, length), GREEDY if n % 2 else PARAMS) for n, length in enumerate(lengths)]


def assert_forced(model: LoadedModel, lengths: Sequence[int], answers: Answers) -> None:
    """Request n has n accepted drafts of every block, whatever the lengths of the prompts."""
    asked = mixed(lengths)
    expected = answers(model, asked)
    tested = drafting_engine(model, right_drafts(expected, lambda one: one.request_id))
    assert run(tested, asked) == expected
    # Six tokens behind the first: six blocks of one token for request 0, one block of six for request 5.
    assert [one.num_accepted_tokens for one in asked] == [0, 3, 4, 4, 4, 5]
    assert_as_at_start(tested)


@pytest.mark.parametrize("name", POOLS)
def test_every_number_of_accepted_drafts_leaves_the_answer(name: str, models: Models, answers: Answers) -> None:
    profile, pool = POOLS[name]
    # Both phases of a pair, and six of a ring of 13 rows.
    assert_forced(models(CHECKPOINT, profile, pool), (3, 8, 13, 4, 9, 14), answers)


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", POOLS)
def test_every_number_at_every_phase_leaves_the_answer(name: str, models: Models, answers: Answers) -> None:
    profile, pool = POOLS[name]
    for first in range(1, 27):
        assert_forced(models(CHECKPOINT, profile, pool), [(first + 5 * n) % 26 + 1 for n in range(6)], answers)


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", POOLS)
def test_two_hundred_random_requests_with_random_acceptance_are_answered_as_without_drafts(
    name: str, models: Models, answers: Answers
) -> None:
    profile, pool = POOLS[name]
    model, drawn = models(CHECKPOINT, profile, pool), Random(41)
    for start in range(0, 200, 10):
        asked = [
            asking(number, prompt(number, drawn.randrange(1, 27)), drawn.choice((GREEDY, PARAMS)))
            for number in range(start, start + 10)
        ]
        expected = answers(model, asked)
        tested = drafting_engine(model, right_drafts(expected, lambda _: drawn.randrange(WIDTH + 1)), slots=4)
        assert run(tested, asked) == expected
        assert_as_at_start(tested)


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_two_hundred_requests_are_answered_as_without_drafts(model: LoadedModel, answers: Answers) -> None:
    for start in range(0, 200, 10):
        lengths = [1 + (7 * n + start) % 23 for n in range(10)]
        asked = mixed(lengths)
        for draft in (Draft.ON, Draft.ADAPTIVE):
            tested = drafting_engine(model, draft=draft)
            assert run(tested, mixed(lengths)) == answers(model, asked)


@pytest.mark.parametrize("draft", [Draft.ON, Draft.ADAPTIVE], ids=lambda draft: draft.value)
def test_own_drafts_leave_greedy_and_seeded_answers(draft: Draft, model: LoadedModel, answers: Answers) -> None:
    asked = mixed((3, 9, 2, 1))
    tested = drafting_engine(model, draft=draft)
    assert run(tested, asked) == answers(model, asked)
    stats = tested.stats
    assert sum(one.num_draft_tokens for one in asked) == sum(stats.drafted_tokens)
    if draft is Draft.ON:
        assert sum(stats.accepted_tokens) > 0
    assert_as_at_start(tested)


def test_another_checkpoint_drafts_and_answers_alike(models: Models, second_checkpoint: Path, answers: Answers) -> None:
    model = models(second_checkpoint, Profile.VENDOR)
    asked = mixed((3, 4, 7))
    expected = answers(model, asked)
    ragged = itertools.cycle((3, 0, 5, 1, 4, 2))
    tested = drafting_engine(model, right_drafts(expected, lambda _: next(ragged)))
    assert run(tested, asked) == expected
    assert tested.stats.num_block_tokens > 1.5 * tested.stats.num_draft_blocks


def pool_of(tested: Engine) -> Pool:
    store = tested.runner.store
    assert isinstance(store, PagedStore)
    return store.pool


def zero(logits: Tensor) -> Tensor:
    return torch.zeros_like(logits)


def noise(logits: Tensor) -> Tensor:
    return torch.randn(logits.shape, generator=torch.Generator().manual_seed(1)) * 9


def no_number(logits: Tensor) -> Tensor:
    return torch.full_like(logits, torch.nan)


@pytest.mark.parametrize("drafter", [zero, noise, no_number])
def test_a_drafter_of_nonsense_leaves_the_answers(drafter: object, model: LoadedModel, answers: Answers) -> None:
    asked = mixed((3, 9))
    tested = drafting_engine(model)
    replaced_drafts(tested, drafter)  # type: ignore[arg-type]
    assert run(tested, asked) == answers(model, asked)


def zeroed(_: bytes, __: int) -> bytes:
    return bytes(len(_))


def shuffled(data: bytes, size: int) -> bytes:
    """Another order of the same numbers of `size` bytes, so that none is NaN."""
    order = torch.randperm(len(data) // size, generator=torch.Generator().manual_seed(len(data)))
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).view(-1, size)[order].numpy().tobytes()


@pytest.mark.parametrize("change", [zeroed, shuffled])
def test_draft_stages_of_other_weights_leave_the_answers(
    change: Callable[[bytes, int], bytes], model: LoadedModel, answers: Answers, tmp_path: Path
) -> None:
    directory = tiny_copy(tmp_path)
    for path in directory.glob("*.safetensors"):
        header, data = read_raw(path)
        written = bytearray(data)
        for name in (name for name in header if name.startswith("mtp.")):
            start, end = header[name]["data_offsets"]
            size = (end - start) // math.prod(header[name]["shape"])
            written[start:end] = change(data[start:end], size)
        path.write_bytes(shard_bytes(header, bytes(written)))
    others = load_model(directory, model.profile, model.pool, model.kernels, drafts=True)
    drafts: list[dict[int, list[tuple[int, ...]]]] = []
    for one in (model, others):
        seen = {0: list[tuple[int, ...]](), 1: []}

        def note(
            request: Request, proposed: Sequence[int], seen: dict[int, list[tuple[int, ...]]] = seen
        ) -> Sequence[int]:
            seen[request.request_id].append(tuple(proposed))
            return proposed

        asked = mixed((3, 9))
        assert run(drafting_engine(one, note), asked) == answers(model, asked)
        drafts.append(seen)
    assert drafts[0] != drafts[1]


FEW = dict.fromkeys((7, 8, 9), 30.0)
"""Bias towards three tokens, so that an answer repeats itself as far as penalties let it."""
PROCESSED = {
    "penalties": {"presence_penalty": 2.0, "frequency_penalty": 2.0, "logit_bias": FEW},
    "cuts": {"top_k": 20, "top_p": 0.8, "min_p": 0.02, "logit_bias": {7: 4.0, 9: -3.0}},
    "greedy repetition": {"temperature": 0, "repetition_penalty": 1.4, "logit_bias": FEW},
    "greedy frequency": {"temperature": 0, "frequency_penalty": 2.0, "logit_bias": FEW},
}


def test_processors_follow_the_tokens_of_a_block(model: LoadedModel) -> None:
    asked = [
        asking(n, prompt(n, 3 + n), SamplingParams(max_tokens=7, ignore_eos=True, logprobs=1, **values))  # type: ignore[arg-type]
        for n, values in enumerate(PROCESSED.values())
    ]
    expected = plain(model, asked)
    tested = drafting_engine(model, right_drafts(expected, lambda _: WIDTH))
    assert run(tested, asked) == expected
    assert tested.stats.num_draft_blocks == len(asked)  # each answer is its first token and one block


def test_preempted_requests_draft_on_and_answer_alike(model: LoadedModel, answers: Answers) -> None:
    lengths = (3, 5, 2, 4)
    asked = mixed(lengths)
    expected = answers(model, asked)
    ragged = itertools.cycle((2, 0, 3, 1))
    tested = drafting_engine(
        model, right_drafts(expected, lambda _: next(ragged)), factor=1, longest=12, spare=3, slots=4
    )
    assert run(tested, asked) == expected
    stats = tested.stats
    assert stats.num_preemptions > 0
    assert sum(stats.accepted_tokens) > 0
    assert_as_at_start(tested)


def test_a_hit_restores_what_the_draft_stages_had(model: LoadedModel, answers: Answers) -> None:
    page = page_size(model, 4)
    text = prompt(7, page + 3)
    asked = [asking(0, text, PARAMS), asking(1, (*text, 9, 8), GREEDY)]
    expected = answers(model, asked)
    seen: dict[bool, list[tuple[int, ...]]] = {}
    for cached in (False, True):
        drafts = seen.setdefault(cached, [])

        def note(one: Request, proposed: Sequence[int], drafts: list[tuple[int, ...]] = drafts) -> Sequence[int]:
            if one.request_id == 1:
                drafts.append(tuple(proposed))
            return proposed

        tested = drafting_engine(model, note, num_images=4)
        again = [asking(0, text, PARAMS), asking(1, (*text, 9, 8), GREEDY)]
        found = {}
        for one in again if cached else again[1:]:
            # The slot is the same each time: what it holds must come from the image.
            pool_of(tested).window_bytes().fill_(POISON)
            found |= run(tested, [one])
        assert found == {number: expected[number] for number in found}
        assert again[1].num_cached_tokens == (page if cached else 0)
        assert_as_at_start(tested)
    assert seen[False] == seen[True] != []


def test_a_continued_answer_resumes_behind_drafted_tokens(model: LoadedModel) -> None:
    page = page_size(model, 2)
    params = SamplingParams(max_tokens=2 * page + 2, ignore_eos=True, logprobs=2)
    first = asking(0, prompt(3, 4), params)
    right = plain(model, [first])
    tested = drafting_engine(model, right_drafts(right, lambda _: 3), num_images=8, factor=2)
    assert run(tested, [first]) == right
    assert first.num_accepted_tokens > page // 2
    ids = (*first.prompt_ids, *first.output_ids)
    again = asking(1, (*ids, 5), SamplingParams(max_tokens=2, ignore_eos=True, logprobs=2))
    assert run(tested, [again]) == plain(model, [again])
    # The last boundary that drafting has passed has an image.
    assert again.num_cached_tokens == (len(ids) - 1) // page * page
    assert_as_at_start(tested)


def test_a_drafting_engine_begins_no_request_in_rows_of_another_layout(model: LoadedModel) -> None:
    names = []
    for draft in Draft:
        cache = paged_engine(model, factor=4, longest=64, num_images=1, draft=draft).scheduler.limits.reuse
        assert cache is not None
        names.append(cache.layout_id)
    assert len(set(names)) == len(names)


def test_vocabulary_of_the_forced_drafts_is_the_models(model: LoadedModel) -> None:
    assert model.config.vocab_size == VOCAB
    assert model.config.dspark.block_size == WIDTH
    assert isinstance(model.pool, PoolFormat)
