"""What the model's own drafts bring on the canary's questions, one request at a time.

The shortest questions of each family are answered without drafts and with them, in turns, so that a busy machine slows
both alike.  Answers must be equal.  Seconds are those behind the first token: drafts do nothing for a prompt.  spec:
dspark.md sections 5 to 8.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from flash41.engine.answers import Answer
from flash41.engine.llm import LLM
from flash41.tools.canary.asking import Asked
from flash41.tools.canary.score import Progress

MOST_OF_A_FAMILY = 12
"""Questions of each family that are answered both ways."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftFigures:
    """What became of drafts."""

    answers: int
    """Questions answered both ways."""
    equal: bool
    """Whether all answers were."""
    drafted: int
    """Drafts verified."""
    accepted: int
    """Those of them that are tokens of an answer."""
    accepted_share: float | None
    """Accepted over drafted; None where nothing was drafted."""
    by_position: tuple[float, ...]
    """The same by position behind the anchor."""
    tokens_per_step: float | None
    """Tokens that an answer gained per verification."""
    seconds_without: float
    """Behind the first tokens, without drafts."""
    seconds_with: float
    speedup: float
    """The former over the latter."""


def draft_figures(plain: LLM, drafting: LLM, asked: Sequence[Asked], progress: Progress | None = None) -> DraftFigures:
    """Answers the shortest questions without pictures, which are never drafted for, on two engines of one model."""
    texts = shortest([one for one in asked if not one.pictures])
    for llm in (plain, drafting):
        _answered(llm, texts[0])  # reads the files and decodes the weights
    before = drafting.engine.stats
    seconds, equal = {False: 0.0, True: 0.0}, True
    for number, one in enumerate(texts):
        answers = {}
        for drafts in (False, True) if number % 2 else (True, False):
            answers[drafts] = _answered(drafting if drafts else plain, one)
            seconds[drafts] += _seconds(answers[drafts])
        equal &= answers[False].request.output_ids == answers[True].request.output_ids
        if progress is not None:
            progress(number + 1, len(texts))
    after = drafting.engine.stats
    drafted = _risen(before.drafted_tokens, after.drafted_tokens)
    accepted = _risen(before.accepted_tokens, after.accepted_tokens)
    num_blocks = after.num_draft_blocks - before.num_draft_blocks
    return DraftFigures(
        answers=len(texts),
        equal=equal,
        drafted=sum(drafted),
        accepted=sum(accepted),
        accepted_share=sum(accepted) / sum(drafted) if sum(drafted) else None,
        by_position=tuple(good / tried for good, tried in zip(accepted, drafted, strict=True) if tried),
        tokens_per_step=(after.num_block_tokens - before.num_block_tokens) / num_blocks if num_blocks else None,
        seconds_without=seconds[False],
        seconds_with=seconds[True],
        speedup=seconds[False] / seconds[True],
    )


def shortest(asked: Sequence[Asked]) -> list[Asked]:
    """`MOST_OF_A_FAMILY` questions of each family at most, short prompts first."""
    counts: dict[str, int] = {}
    found = []
    for one in sorted(asked, key=lambda one: one.prompt_tokens):
        family = one.question.family
        counts[family] = counts.get(family, 0) + 1
        if counts[family] <= MOST_OF_A_FAMILY:
            found.append(one)
    return found


def _answered(llm: LLM, one: Asked) -> Answer:
    (answer,) = llm.as_finished([one.request(llm)])
    return answer


def _seconds(answer: Answer) -> float:
    """From the first token to the last."""
    assert answer.first is not None, answer.request
    return answer.last - answer.first


def _risen(before: Sequence[int], after: Sequence[int]) -> list[int]:
    return [count - (before[k] if k < len(before) else 0) for k, count in enumerate(after)]
