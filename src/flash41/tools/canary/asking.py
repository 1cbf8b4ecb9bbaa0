"""From questions to requests of an engine.

A question is left out, with the reason, where this engine cannot be asked: it is longer than the longest request, or
shows pictures to an engine without an image encoder.

The order makes long work begin first, and lets later turns of a conversation find what earlier ones have left: of as
many conversations as run side by side all first turns are asked, then all second ones, and so on.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from flash41.chat.images import Picture
from flash41.chat.prompt_pictures import pictures_of
from flash41.engine.llm import LLM
from flash41.engine.prompt_images import image_sizes, num_widened
from flash41.engine.request import Constraint, Request, SamplingParams, StopWatcher
from flash41.tools.canary.conversations import Question
from flash41.tools.canary.spelling import spelled


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Asked:
    """A question as an engine is asked it."""

    question: Question
    ids: tuple[int, ...]
    """The prompt, one placeholder for each picture."""
    pictures: tuple[Picture, ...]
    answer: tuple[int, ...]
    """Ids of the right answer, EOS included."""

    @property
    def prompt_tokens(self) -> int:
        """Positions of the prompt."""
        return num_widened(self.ids, self.pictures)

    def request(
        self,
        llm: LLM,
        watcher: StopWatcher | None = None,
        constraint: Constraint | None = None,
        logprobs: int | None = None,
    ) -> Request:
        """A greedy request for at most as many tokens as the right answer has."""
        params = SamplingParams(temperature=0, max_tokens=len(self.answer), seed=0, logprobs=logprobs)
        return llm.request(self.ids, params, watcher=watcher, constraint=constraint, pictures=self.pictures)


@dataclass(slots=True)
class Paper:
    """What is asked, and what cannot be."""

    asked: list[Asked] = field(default_factory=list)
    left_out: list[tuple[Question, str]] = field(default_factory=list)
    """With the reason."""


def paper(llm: LLM, questions: Iterable[Question]) -> Paper:
    """Questions rendered by the checkpoint's own codec.  Raises ConfigError if it lacks a control token."""
    found, longest = Paper(), llm.plan.max_model_len
    codec, eos, sizes = llm.codec, llm.config.tokens.eos, image_sizes(llm.config.vision)
    for question in questions:
        if question.shows_pictures and not llm.plan.pictures.num_rows:
            found.left_out.append((question, "it shows pictures, and no image encoder is open"))
            continue
        prompt = codec.encode(codec.convert(question.body))
        answer = spelled(codec, question.answer, eos)
        pictures = tuple(pictures_of(prompt.images, sizes))
        one = Asked(question=question, ids=prompt.ids, pictures=pictures, answer=answer)
        if one.prompt_tokens + len(answer) > longest:
            found.left_out.append((question, f"it is longer than {longest:,} tokens"))
            continue
        found.asked.append(one)
    found.asked = list(_ordered(found.asked, llm.plan.max_num_seqs))
    return found


def _ordered(asked: Sequence[Asked], together: int) -> Iterator[Asked]:
    conversations: dict[int, list[Asked]] = {}
    for one in asked:
        conversations.setdefault(one.question.conversation, []).append(one)
    longest = sorted(conversations.values(), key=lambda turns: -turns[-1].prompt_tokens)
    for first in range(0, len(longest), together):
        beside = longest[first : first + together]
        for turn in range(max(map(len, beside))):
            yield from (turns[turn] for turns in beside if turn < len(turns))
