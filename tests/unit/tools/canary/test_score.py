import math

import pytest

from flash41.engine.llm import LLM
from flash41.engine.request import SamplingParams
from flash41.tools.canary.asking import Asked, Paper
from flash41.tools.canary.score import ALL, Count, FirstWrong, perplexities, score
from helpers.canary_questions import answered, paper_of, question, spoiled

PROMPTS = [[0, 7, 9, 300], [0, 5], [0, 41, 42, 43, 44]]


@pytest.fixture(scope="module")
def right(llm: LLM) -> list[Asked]:
    return answered(llm, PROMPTS, "a")


def test_an_answer_counts_when_every_token_is_the_expected_one(llm: LLM, right: list[Asked]) -> None:
    size = llm.config.vocab_size
    seen: list[tuple[int, int]] = []
    others = [spoiled(right[0], place, size) for place in range(4)]
    found = score(llm, paper_of(*right, *others), lambda done, total: seen.append((done, total)))
    assert found.families == {"a": Count(right=3, asked=7)}
    assert found.fractions == {"a": 3 / 7}
    assert seen == [(done, 7) for done in range(1, 8)]
    assert found.seconds > 0
    assert llm.engine.num_unfinished == 0


def test_an_answer_that_goes_on_behind_the_expected_end_is_wrong(llm: LLM, right: list[Asked]) -> None:
    eos = llm.config.tokens.eos
    ended = Asked(question=question("a"), ids=right[0].ids, pictures=(), answer=(*right[0].answer[:2], eos))
    assert score(llm, paper_of(ended)).families["a"].right == 0


def test_an_answer_ends_at_its_first_wrong_token(llm: LLM, right: list[Asked]) -> None:
    watcher = FirstWrong(spoiled(right[0], 1, llm.config.vocab_size).answer)
    request = right[0].request(llm, watcher=watcher)
    (answer,) = llm.as_finished([request])
    assert answer.request.output_ids == list(right[0].answer[:2])
    assert watcher.num_right == 1
    assert not watcher.is_right


def test_prompts_are_told_apart_by_their_lengths(llm: LLM) -> None:
    long = answered(llm, [[0, *range(3, 300)], [0, *range(3, 259)], [0, *range(3, 258)]], "b", 1)
    found = score(llm, paper_of(*long, spoiled(long[0], 0, llm.config.vocab_size)))
    assert found.lengths["b"] == [
        Count(right=1, asked=1),
        Count(right=2, asked=3),
        Count(right=0, asked=0),
        Count(right=0, asked=0),
    ]


def test_what_was_left_out_is_counted_by_its_reason(llm: LLM, right: list[Asked]) -> None:
    absent = [(question("c", 9), "too long"), (question("c", 8), "too long"), (question("a", 7), "blind")]
    found = score(llm, Paper(asked=right, left_out=absent))
    assert found.left_out == {"c": {"too long": 2}, "a": {"blind": 1}}
    assert found.families == {"a": Count(right=3, asked=3), "c": Count(right=0, asked=0)}
    assert found.fractions == {"a": 1.0}


def test_perplexity_is_that_of_the_expected_tokens(llm: LLM, right: list[Asked]) -> None:
    wrong = spoiled(right[1], 2, llm.config.vocab_size)
    other = Asked(question=question("b"), ids=wrong.ids, pictures=(), answer=wrong.answer)
    found = perplexities(llm, paper_of(right[0], right[2], other))
    params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True, logprobs=0)
    said = llm.generate([right[0].ids, right[2].ids], params)
    told = [token.logprob for one in said for token in one.logprobs or () if token.logprob is not None]
    assert found["a"] == pytest.approx(math.exp(-sum(told) / 8), rel=1e-12)
    # One token at a time, each asked behind the expected ones before it.
    alone = []
    for place, token in enumerate(other.answer):
        bias = SamplingParams(temperature=0, max_tokens=1, logprobs=0, ignore_eos=True, logit_bias={token: 100.0})
        (one,) = llm.generate([[*other.ids, *other.answer[:place]]], bias)
        assert one.output_ids == (token,)
        assert one.logprobs is not None
        alone.append(one.logprobs[0].logprob or 0.0)
    assert found["b"] == pytest.approx(math.exp(-sum(alone) / 4), rel=1e-12)
    assert found[ALL] == pytest.approx(math.exp(-(sum(told) + sum(alone)) / 12), rel=1e-12)


def test_an_expected_end_of_the_answer_counts_as_a_token(llm: LLM, right: list[Asked]) -> None:
    eos = llm.config.tokens.eos
    ended = Asked(question=question("a"), ids=right[0].ids, pictures=(), answer=(eos,))
    (found,) = set(perplexities(llm, paper_of(ended)).values())
    assert found > 1
