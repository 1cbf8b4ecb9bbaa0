"""Requests with pictures: whatever the chunks, the company, the cache and the memory, the answer of one alone.

All equalities are of tokens with their log-probabilities, into which every bit of the logits enters.
spec: vision.md sections 6 and 8, cache.md section 7, pitfalls 73, 113 and 144 to 146.
"""

import io
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from flash41.chat.images import Picture, picture
from flash41.config.run import Draft, Profile
from flash41.engine.engine import Engine
from flash41.engine.load import LoadedModel
from flash41.engine.request import FinishReason, Request, SamplingParams
from helpers.answers import Tokens, asking, assert_as_at_start, page_size, prompt, run, step
from helpers.golden_judge import CHECKPOINT
from helpers.image_files import SMALL_SIZES, encoded, pattern
from helpers.models import Models
from helpers.picturing import alone, drawn, picture_engine, picture_plan, showing

IMAGE, LONGEST = 511, 64
SHORT = SamplingParams(max_tokens=3, ignore_eos=True, logprobs=3)
WIDE, TALL, OTHER = drawn(60, 45, seed=1), drawn(40, 90, seed=2), drawn(60, 45, seed=3)
PROMPTS: dict[str, tuple[list[int], list[Picture]]] = {
    "first": ([IMAGE, 5, 300, 7, 42], [WIDE]),
    "last": ([0, 5, 300, 7, IMAGE], [WIDE]),
    "alone": ([IMAGE], [TALL]),
    "two": ([0, IMAGE, IMAGE, 9, 77, 12], [WIDE, TALL]),
    "apart": ([0, IMAGE, 9, 5, 300, IMAGE, 77, 12, 33], [TALL, OTHER]),
    "twice": ([0, 8, IMAGE, 9, IMAGE, 77], [WIDE, WIDE]),
}


@pytest.fixture(scope="session")
def models(quick_models: Models) -> Models:
    return quick_models


@pytest.fixture
def model(models: Models) -> LoadedModel:
    return models(CHECKPOINT, Profile.VENDOR)


def asked(model: LoadedModel, number: int, name: str) -> Request:
    """A prompt by its name, always with the same seed, so that its answer is known from the first time on."""
    request = showing(model, number, *PROMPTS[name], params=SHORT)
    request.seed = 1000 + list(PROMPTS).index(name)
    return request


def engine(model: LoadedModel, **values: Any) -> Engine:
    return picture_engine(model, **{"longest": LONGEST, "slots": 4, "rows": 16, "spare": 24, **values})


class Answers:
    """What each request is answered alone, computed once."""

    def __init__(self) -> None:
        self._kept: dict[object, Tokens] = {}

    def __call__(self, model: LoadedModel, one: Request) -> Tokens:
        names = tuple(image.planned.identity for image in one.images)
        key = (
            model.profile,
            model.pool,
            one.prompt_ids,
            names,
            one.seed,
            one.params.max_tokens,
            one.params.temperature,
        )
        if key not in self._kept:
            self._kept[key] = alone(model, one)
        return self._kept[key]


@pytest.fixture(scope="module")
def answers() -> Answers:
    return Answers()


@pytest.mark.parametrize("rows", [1, 7, 64])
def test_prompts_are_read_through_pictures_in_any_chunks(rows: int, model: LoadedModel, answers: Answers) -> None:
    names = {1: ["twice"], 7: ["apart"], 64: list(PROMPTS)}[rows]
    for one in [asked(model, number, name) for number, name in enumerate(names)]:
        tested = engine(model, rows=rows, slots=1)
        assert run(tested, [one]) == {one.request_id: answers(model, one)}
        assert_as_at_start(tested)


def test_pictures_and_texts_in_one_batch_are_each_as_if_alone(model: LoadedModel, answers: Answers) -> None:
    requests = [asked(model, number, name) for number, name in enumerate(PROMPTS)]
    requests += [asking(10 + number, prompt(number, 9), SHORT) for number in range(2)]
    tested = engine(model)
    assert run(tested, requests) == {one.request_id: answers(model, one) for one in requests}
    assert tested.stats.num_pictures_encoded == 3  # five requests show three pictures
    assert_as_at_start(tested)


def test_room_for_one_picture_only_is_enough_for_everybody(model: LoadedModel, answers: Answers) -> None:
    requests = [asked(model, number, name) for number, name in enumerate(PROMPTS)]
    tested = engine(model, pictures=picture_plan(rows=24, patches=216))
    assert run(tested, requests) == {one.request_id: answers(model, one) for one in requests}
    assert tested.pictures is not None
    assert tested.pictures.num_rows <= 24
    assert_as_at_start(tested)


def test_a_step_encodes_no_more_patches_than_it_may(model: LoadedModel, answers: Answers) -> None:
    requests = [asked(model, number, name) for number, name in enumerate(("two", "apart"))]
    tested = engine(model, rows=64, pictures=picture_plan(patches=max(WIDE.plan.num_patches, TALL.plan.num_patches)))
    for one in requests:
        tested.add(one)
    seen: dict[int, Tokens] = {}
    while tested.num_unfinished:
        before = tested.stats.num_pictures_encoded
        step(tested, seen)
        assert tested.stats.num_pictures_encoded - before <= 1
    assert seen == {one.request_id: answers(model, one) for one in requests}


class TestCache:
    """What is cached of prompts with pictures."""

    @staticmethod
    def engine(model: LoadedModel, **values: Any) -> Engine:
        return engine(model, num_images=12, rows=64, **values)

    def test_a_hit_gives_the_bits_of_a_miss(self, model: LoadedModel, answers: Answers) -> None:
        tested = self.engine(model)
        for name in ("first", "two", "twice"):
            first, again = (asked(model, number, name) for number in range(2))
            assert run(tested, [first]) == {0: answers(model, first)}
            assert run(tested, [again]) == {1: answers(model, again)}
            pages = (len(again.prompt_ids) - 1) // page_size(model)
            assert again.num_cached_tokens == pages * page_size(model) > 0
        assert_as_at_start(tested)

    def test_a_hit_that_ends_inside_a_picture_goes_on_inside_it(self, model: LoadedModel, answers: Answers) -> None:
        tested, size = self.engine(model), page_size(model)
        one = asked(model, 0, "last")
        run(tested, [one])
        again = asked(model, 1, "last")
        assert run(tested, [again]) == {1: answers(model, again)}
        (image,) = again.images
        assert image.planned.start < (again.num_cached_tokens or 0) < image.planned.end
        assert (again.num_cached_tokens or 0) % size == 0

    def test_two_pictures_of_the_same_cost_share_nothing_from_there_on(
        self, model: LoadedModel, answers: Answers
    ) -> None:
        tested, size = self.engine(model), page_size(model)
        texts = [5, 300, 7, 42] * (size // 4)
        pair = [
            showing(model, number, [*texts, IMAGE, 9], [shown], SHORT) for number, shown in enumerate((WIDE, OTHER))
        ]
        assert pair[0].prompt_ids == pair[1].prompt_ids
        for one in pair:
            assert run(tested, [one]) == {one.request_id: answers(model, one)}
        assert pair[1].num_cached_tokens in (0, size)  # the text in front of the picture at most
        keys = [{key.hash for key in one.page_keys} for one in pair]
        assert len(keys[0] & keys[1]) == 1

    def test_two_grids_of_equal_cost_share_nothing(self, model: LoadedModel, answers: Answers) -> None:
        shown = [drawn(50, 170, seed=1), drawn(130, 90, seed=1)]
        costs = {one.plan.num_tokens for one in shown}
        grids = {(one.plan.token_rows, one.plan.token_columns) for one in shown}
        assert (len(costs), len(grids)) == (1, 2)
        tested = self.engine(model)
        for number, one in enumerate(shown):
            request = showing(model, number, [IMAGE, 9], [one], SHORT)
            assert run(tested, [request]) == {number: answers(model, request)}
            assert request.num_cached_tokens == 0

    def test_another_file_of_the_same_picture_shares_all(self, model: LoadedModel) -> None:
        pixels = pattern(60, 45)
        files = [encoded(pixels), encoded(pixels, "WEBP", lossless=True), encoded(pixels, compress_level=0)]
        assert len(set(files)) == 3
        tested = self.engine(model)
        seen = []
        for number, file in enumerate(files):
            request = showing(model, number, [0, IMAGE, 9, 5], [picture(file, SMALL_SIZES)], SHORT)
            request.seed = 1
            seen.append(run(tested, [request])[number])
            assert bool(request.num_cached_tokens) == (number > 0)
        assert seen[0] == seen[1] == seen[2]
        assert tested.stats.num_pictures_encoded == 1

    def test_the_same_ids_with_a_picture_and_without_share_nothing(self, model: LoadedModel, answers: Answers) -> None:
        tested = self.engine(model)
        shown = asked(model, 0, "alone")
        run(tested, [shown])
        bare = asking(1, shown.prompt_ids, SHORT)
        assert run(tested, [bare]) == {1: answers(model, bare)}
        assert bare.num_cached_tokens == 0

    def test_other_salts_share_neither_pages_nor_rows(self, model: LoadedModel) -> None:
        tested = self.engine(model)
        for number, salt in enumerate((b"", b"a", b"b", b"a")):
            request = showing(model, number, *PROMPTS["alone"], SHORT, salt)
            run(tested, [request])
            assert bool(request.num_cached_tokens) == (number == 3)
        assert tested.stats.num_pictures_encoded == 3

    def test_an_answer_that_is_continued_finds_its_picture_cached(self, model: LoadedModel, answers: Answers) -> None:
        tested = self.engine(model)
        first = asked(model, 0, "apart")
        run(tested, [first])
        longer = asking(1, (*first.prompt_ids, *first.output_ids, 9, 5), SHORT, images=first.images)
        assert run(tested, [longer]) == {1: answers(model, longer)}
        assert (longer.num_cached_tokens or 0) >= len(first.prompt_ids) // page_size(model) * page_size(model)

    @settings(max_examples=2, deadline=None)
    @given(data=st.data())
    def test_any_mixture_is_answered_as_alone(self, models: Models, answers: Answers, data: st.DataObject) -> None:
        model = models(CHECKPOINT, Profile.VENDOR)
        names = data.draw(st.lists(st.sampled_from(list(PROMPTS)), min_size=2, max_size=4))
        plan = picture_plan(rows=data.draw(st.sampled_from([24, 48])))
        tested = engine(
            model, num_images=data.draw(st.integers(0, 3)), rows=data.draw(st.integers(3, 24)), spare=1, pictures=plan
        )
        requests = [asked(model, number, name) for number, name in enumerate(names)]
        assert run(tested, requests) == {one.request_id: answers(model, one) for one in requests}
        assert_as_at_start(tested)


def test_a_request_that_gave_way_is_answered_as_alone(model: LoadedModel, answers: Answers) -> None:
    long = SamplingParams(max_tokens=12, ignore_eos=True, logprobs=3)
    requests = [showing(model, number, *PROMPTS[name], long) for number, name in enumerate(("first", "last"))]
    tested = engine(model, spare=2, longest=32)
    assert run(tested, requests) == {one.request_id: answers(model, one) for one in requests}
    assert tested.stats.num_preemptions > 0
    assert_as_at_start(tested)


def test_pictures_run_undrafted_beside_texts_that_are_drafted(model: LoadedModel, answers: Answers) -> None:
    params = SamplingParams(max_tokens=6, ignore_eos=True, logprobs=3, temperature=0)
    shown = showing(model, 0, *PROMPTS["two"], params)
    shown.undrafted_because = "images in the request"
    text = asking(1, prompt(1, 9), params)
    tested = engine(model, draft=Draft.ON, rows=48)
    assert run(tested, [shown, text]) == {one.request_id: answers(model, one) for one in (shown, text)}
    assert shown.num_draft_tokens == 0 < text.num_draft_tokens


class Breaking(torch.nn.Module):
    """An encoder whose first call fails."""

    def __init__(self, encoder: torch.nn.Module) -> None:
        super().__init__()
        self._encoder = encoder
        self.num_calls = 0

    def forward(self, *values: Any) -> Any:
        self.num_calls += 1
        if self.num_calls == 1:
            raise MemoryError("no memory for a picture")
        return self._encoder(*values)


def test_a_picture_that_cannot_be_encoded_ends_its_step_and_the_next_one_works(
    model: LoadedModel, answers: Answers
) -> None:
    tested = engine(model)
    assert tested.pictures is not None
    tested.pictures._encoder = Breaking(tested.pictures._encoder)  # type: ignore[assignment]
    first, again = asked(model, 0, "alone"), asked(model, 1, "alone")
    tested.add(first)
    with pytest.raises(MemoryError):
        tested.step()
    assert first.finish_reason is FinishReason.ABORT
    assert run(tested, [again]) == {1: answers(model, again)}
    assert_as_at_start(tested)


def test_replays_show_pictures_again(model: LoadedModel) -> None:
    """Approximate modes give other answers; they must still find the rows of every position they compute."""
    for mode in ("decoder", "prefix"):
        tested = engine(model, num_images=6, rows=64, **{mode: True})
        for number in range(2):
            one = asked(model, number, "two")
            run(tested, [one])
            assert one.finish_reason is FinishReason.LENGTH
        assert tested.stats.num_hits == 1
    assert tested.stats.replayed_tokens > 0


def test_a_small_random_model_answers_about_pictures(tiny_directory: Path) -> None:
    from flash41.chat.conversation import Message
    from flash41.chat.parts import Image as Shown
    from flash41.engine.llm import LLM

    llm = LLM(tiny_directory, max_model_len=256)
    file = io.BytesIO()
    Image.radial_gradient("L").save(file, "PNG")
    message = Message(role="user", content=("What is this?", Shown(file.getvalue())))
    params = SamplingParams(max_tokens=4, seed=1)
    first, again = (llm.chat([message], params) for _ in range(2))
    assert first.output_ids == again.output_ids
    assert first.image_tokens == again.image_tokens == (58,)
    assert llm.chat([Message(role="user", content="What is this?")], params).output_ids != first.output_ids
