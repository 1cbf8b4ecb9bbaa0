"""How good a checkpoint is, asked through the engine: held-out conversations, greedy answers, token for token.

An answer counts when it is exactly the expected one, EOS included.  Scores are fractions by family.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from flash41.config.names import named_wish
from flash41.config.run import RunWish
from flash41.engine.llm import LLM
from flash41.engine.load import LoadedModel, load_model
from flash41.engine.pictures import encode
from flash41.engine.plan import PlannedImage, PlannedSpan, StepPlan
from flash41.engine.request import SamplingParams
from flash41.kernels.select import select_kernels
from training.corpus.mixture import HELD_OUT, Mixture, sample
from training.corpus.render import Example, Renderer


def held_out(
    renderer: Renderer, families: Sequence[str], each: int, shortest: int, longest: int, limit: int
) -> list[Example]:
    """`each` held-out examples of every family, of at most `limit` tokens."""
    found = []
    for family in families:
        mixture, kept, number = Mixture(weights={family: 1.0}, shortest=shortest, longest=longest), 0, 0
        while kept < each and number < 20 * each:
            example = renderer.example(sample(0, f"{HELD_OUT} {family}", number, mixture))
            number += 1
            if len(example.ids) <= limit:
                found.append(example)
                kept += 1
    return found


def scores(directory: Path, examples: Sequence[Example], profile: str = "vendor") -> dict[str, float]:
    """Fraction of right answers by family."""
    right, asked = defaultdict[str, int](int), defaultdict[str, int](int)
    for example, answer in zip(examples, answers(directory, examples, profile), strict=True):
        asked[example.family] += 1
        right[example.family] += answer == example.answer
    return {family: right[family] / asked[family] for family in asked}


def answers(directory: Path, examples: Sequence[Example], profile: str = "vendor") -> list[tuple[int, ...]]:
    """Greedy answers to the prompts of examples, as many tokens at most as the right answer has."""
    texts = [number for number, one in enumerate(examples) if not one.pictures]
    found: dict[int, tuple[int, ...]] = {}
    if texts:
        threads = torch.get_num_threads()
        llm = LLM(directory, profile=profile, prefix_cache=False)
        torch.set_num_threads(threads)
        asked = [examples[number] for number in texts]
        params = [SamplingParams(temperature=0, max_tokens=len(one.answer), ignore_eos=True, seed=0) for one in asked]
        prompts: list[str | Sequence[int]] = [one.ids[: one.num_prompt] for one in asked]
        for number, completion in zip(texts, llm.generate(prompts, params), strict=True):
            found[number] = tuple(completion.output_ids)
    pictured = [number for number, one in enumerate(examples) if one.pictures]
    if pictured:
        wish = named_wish(RunWish(), profile=profile)
        model = load_model(directory, wish.profile, wish.pool, select_kernels("auto"), images=True)
        found |= {number: _answer(model, examples[number]) for number in pictured}
    return [found[number] for number in range(len(examples))]


def _answer(model: LoadedModel, example: Example) -> tuple[int, ...]:
    """The answer to one prompt with pictures, greedy."""
    runner, ids = model.runner(1, len(example.ids)), list(example.ids[: example.num_prompt])
    images, rows = _images(model, example)
    start, answer = 0, list[int]()
    while len(answer) < len(example.answer):
        span = PlannedSpan(
            request_id=0,
            slot=0,
            start=start,
            ids=tuple(ids[start:]),
            history=tuple(ids[max(0, start - model.config.engram.max_ngram + 1) : start]),
            samples=True,
            images=images,
        )
        output = runner.run(runner.stage(StepPlan(spans=(span,)), rows))
        start = len(ids)
        answer.append(int(output.logits[-1].argmax()))
        ids.append(answer[-1])
    return tuple(answer)


def _images(model: LoadedModel, example: Example) -> tuple[tuple[PlannedImage, ...], Mapping[bytes, torch.Tensor]]:
    """Where the pictures of a prompt lie, and their rows."""
    assert model.encoder is not None, "the tower was asked for"
    image, planned, rows, place = model.config.tokens.image, [], {}, 0
    for picture in example.pictures:
        place = example.ids.index(image, place)
        num_rows = picture.plan.num_tokens
        planned.append(PlannedImage(identity=picture.identity, start=place, num_rows=num_rows))
        rows[picture.identity] = encode(model.encoder, picture)
        place += num_rows
    return tuple(planned), rows
