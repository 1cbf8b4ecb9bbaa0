"""How good a checkpoint is, asked through the engine: held-out conversations, greedy answers, token for token.

An answer counts when it is exactly the expected one, EOS included.  Scores are fractions by family.
"""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import torch

from flash41.engine.llm import LLM
from flash41.engine.request import SamplingParams
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
    threads = torch.get_num_threads()
    llm = LLM(directory, profile=profile, prefix_cache=False)
    torch.set_num_threads(threads)  # the engine takes one for a model of this size
    params = [SamplingParams(temperature=0, max_tokens=len(one.answer), ignore_eos=True, seed=0) for one in examples]
    prompts = [one.asked for one in examples]
    completions = llm.generate(prompts, params, images=[one.pictures for one in examples])
    return [completion.output_ids for completion in completions]
