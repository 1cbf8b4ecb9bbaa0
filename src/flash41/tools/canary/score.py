"""How many answers are right, family by family, and how surprised a model is by the right ones.

    score         greedy answers; right when they are the expected tokens, EOS included.  An answer ends at its first
                  wrong token, so wrong models are quick to score
    perplexity    the expected tokens are forced, and exp(-mean log p) over all of them is taken

Both go through requests of the engine and depend on nothing that runs beside them.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from flash41.engine.llm import LLM
from flash41.engine.request import Request
from flash41.tools.canary.asking import Asked, Paper

BUCKETS = (256, 1024, 4096)
"""Prompts are told apart by their tokens: up to each of these, and more."""
ALL = "all"
"""Name of the perplexity over the answers of all families."""

Progress = Callable[[int, int], None]
"""Called with (answers finished, answers in all)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """Right answers of those asked."""

    right: int
    asked: int

    @property
    def score(self) -> float | None:
        """The fraction of right answers; None where nothing was asked."""
        return self.right / self.asked if self.asked else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """What came of asking."""

    families: Mapping[str, Count]
    lengths: Mapping[str, Sequence[Count]]
    """By family: prompts up to each length of `BUCKETS`, and longer ones."""
    left_out: Mapping[str, Mapping[str, int]]
    """By family: reasons for not asking, with the number of questions."""
    seconds: float

    @property
    def fractions(self) -> dict[str, float]:
        """Scores of the families of which anything was asked."""
        found = {family: count.score for family, count in self.families.items()}
        return {family: score for family, score in found.items() if score is not None}


@dataclass(slots=True)
class FirstWrong:
    """A stop watcher that ends an answer at the first token that is not the expected one."""

    answer: Sequence[int]
    num_right: int = 0

    def push(self, token_id: int) -> bool:
        """Takes the next token."""
        if token_id != self.answer[self.num_right]:
            return True
        self.num_right += 1
        return False

    @property
    def is_right(self) -> bool:
        """Whether the whole answer came."""
        return self.num_right == len(self.answer)


@dataclass(slots=True)
class Dictated:
    """A constraint that allows one answer only."""

    answer: Sequence[int]
    vocab_size: int
    num_said: int = 0
    _allowed: NDArray[np.bool_] = field(init=False)

    def __post_init__(self) -> None:
        self._allowed = np.zeros(self.vocab_size, dtype=np.bool_)

    def allowed(self) -> NDArray[np.bool_]:
        """The next token of the answer."""
        self._allowed[:] = False
        self._allowed[self.answer[self.num_said]] = True
        return self._allowed

    def push(self, _token_id: int) -> None:
        """Takes it."""
        self.num_said += 1


def score(llm: LLM, paper: Paper, progress: Progress | None = None) -> Scores:
    """Asks a paper and counts right answers."""
    start, right = time.perf_counter(), list[Asked]()
    watchers: dict[int, tuple[Asked, FirstWrong]] = {}

    def requests() -> Iterator[Request]:
        for one in paper.asked:
            watcher = FirstWrong(one.answer)
            request = one.request(llm, watcher=watcher)
            watchers[request.request_id] = one, watcher
            yield request

    for done, answer in enumerate(llm.as_finished(requests()), 1):
        one, watcher = watchers.pop(answer.request.request_id)
        if watcher.is_right:
            right.append(one)
        if progress is not None:
            progress(done, len(paper.asked))
    return _scores(paper, right, time.perf_counter() - start)


def perplexities(llm: LLM, paper: Paper, progress: Progress | None = None) -> dict[str, float]:
    """Perplexity of the right answers by family, and over all of them."""
    asked: dict[int, Asked] = {}
    surprise: dict[str, list[float]] = {}

    def requests() -> Iterator[Request]:
        for one in paper.asked:
            dictated = Dictated(one.answer, llm.config.vocab_size)
            request = one.request(llm, constraint=dictated, logprobs=0)
            asked[request.request_id] = one
            yield request

    for done, answer in enumerate(llm.as_finished(requests()), 1):
        one = asked.pop(answer.request.request_id)
        told = [token.logprob for token in answer.tokens if token.logprob is not None]
        assert len(told) == len(one.answer), (len(told), len(one.answer))
        for name in (one.question.family, ALL):
            surprise.setdefault(name, []).extend(-logprob for logprob in told)
        if progress is not None:
            progress(done, len(paper.asked))
    return {name: math.exp(math.fsum(found) / len(found)) for name, found in sorted(surprise.items())}


def _scores(paper: Paper, right: Sequence[Asked], seconds: float) -> Scores:
    questions = [*(one.question for one in paper.asked), *(question for question, _ in paper.left_out)]
    families = list(dict.fromkeys(one.family for one in sorted(questions, key=lambda one: one.conversation)))
    left_out: dict[str, dict[str, int]] = {}
    for question, reason in paper.left_out:
        reasons = left_out.setdefault(question.family, {})
        reasons[reason] = reasons.get(reason, 0) + 1
    return Scores(
        families={family: _count(paper.asked, right, family) for family in families},
        lengths={
            family: [_count(paper.asked, right, family, bucket) for bucket in range(len(BUCKETS) + 1)]
            for family in families
        },
        left_out=left_out,
        seconds=seconds,
    )


def _count(asked: Sequence[Asked], right: Sequence[Asked], family: str, bucket: int | None = None) -> Count:
    def counted(found: Sequence[Asked]) -> int:
        return sum(
            one.question.family == family and (bucket is None or _bucket(one.prompt_tokens) == bucket) for one in found
        )

    return Count(right=counted(right), asked=counted(asked))


def _bucket(prompt_tokens: int) -> int:
    return sum(prompt_tokens > most for most in BUCKETS)
