"""Questions whose right answers a model with random weights gives: they are what it said before."""

from collections.abc import Sequence
from dataclasses import replace

from flash41.engine.llm import LLM
from flash41.engine.request import SamplingParams
from flash41.tools.canary.asking import Asked, Paper
from flash41.tools.canary.conversations import Question


def question(family: str, number: int = 0) -> Question:
    return Question(family=family, conversation=number, body={"messages": []}, answer={})


def answered(llm: LLM, prompts: Sequence[Sequence[int]], family: str, num_tokens: int = 4) -> list[Asked]:
    """Prompts with the greedy answers of this model."""
    params = SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True)
    return [
        Asked(question=question(family, number), ids=tuple(ids), pictures=(), answer=found.output_ids)
        for number, (ids, found) in enumerate(zip(prompts, llm.generate(prompts, params), strict=True))
    ]


def spoiled(one: Asked, place: int, vocab_size: int) -> Asked:
    """The same with another token expected at a place of the answer."""
    wrong = [*one.answer]
    wrong[place] = (wrong[place] + 1) % vocab_size
    return replace(one, answer=tuple(wrong))


def paper_of(*asked: Asked) -> Paper:
    return Paper(asked=list(asked))
