"""Held-out conversations that come with the package, and which of their answers are asked.

    line 1     {"families": {name: {"needs", "chance"}}}
    others     {"family", "messages", "tools"?}                 messages as in Chat Completions, the last an answer

Every assistant turn is a right answer to what stands before it, so a conversation asks as many questions as it has
such turns, of which the last `MOST_ASKED` are used.  They share a beginning, which an engine reads once.  Bodies hold
no model, no tokens and no sampling: any checkpoint is asked the same, rendered by its own codec.  Pictures are data
URLs.
"""

import gzip
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from random import Random
from typing import Any

from flash41.errors import RequestError, combined, complaint

MOST_ASKED = 4
"""Answers asked of one conversation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """What is known of a family."""

    needs: str
    """The mechanism its answers need."""
    chance: float
    """Score of a guess by whoever knows everything but the conversation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One answer to be given."""

    family: str
    conversation: int
    """Number of the conversation in the set."""
    body: Mapping[str, Any]
    """What is asked, as a Chat Completions body."""
    answer: Mapping[str, Any]
    """The right answer, as an assistant message."""

    @property
    def shows_pictures(self) -> bool:
        """Whether a message of it holds one."""
        return any(isinstance(message["content"], list) for message in self.body["messages"])


@dataclass(frozen=True, slots=True, kw_only=True)
class CanarySet:
    """All questions."""

    families: Mapping[str, Traits]
    questions: Sequence[Question]
    """In the order of their conversations, the turns of one behind each other."""

    def chosen(self, families: Sequence[str] = (), num_samples: int | None = None, seed: int = 0) -> list[Question]:
        """At most `num_samples` questions of each named family, or of all.

        The seed decides which; a conversation is asked twice only when all others were asked once.  Raises
        RequestError for a family that does not exist.
        """
        unknown = [name for name in families if name not in self.families]
        if unknown:
            known = f"one of {', '.join(self.families)}"
            raise RequestError(combined([complaint("family", name, known) for name in unknown]))
        wanted = [name for name in self.families if not families or name in families]
        if num_samples is None:
            return [one for one in self.questions if one.family in wanted]
        if num_samples < 1:
            raise RequestError(complaint("samples", num_samples, "an integer of at least 1"))
        return [one for name in wanted for one in self._drawn(name, num_samples, seed)]

    def _drawn(self, family: str, num_samples: int, seed: int) -> list[Question]:
        conversations: dict[int, list[Question]] = {}
        for one in self.questions:
            if one.family == family:
                conversations.setdefault(one.conversation, []).append(one)
        shuffled = list(conversations.values())
        Random(f"{seed}/{family}").shuffle(shuffled)
        turns = max(map(len, shuffled))
        in_turns = [of_one[turn] for turn in range(turns) for of_one in shuffled if turn < len(of_one)]
        return sorted(in_turns[:num_samples], key=lambda one: one.conversation)


def read_set() -> CanarySet:
    """The set of the package."""
    packed = (files("flash41.tools.canary") / "data" / "conversations.jsonl.gz").read_bytes()
    return parsed_set(gzip.decompress(packed).decode())


def parsed_set(text: str) -> CanarySet:
    """A set from the lines of its file."""
    head, *lines = (json.loads(line) for line in text.splitlines())
    families = {name: Traits(**traits) for name, traits in head["families"].items()}
    questions = [one for number, line in enumerate(lines) for one in _questions(number, line)]
    return CanarySet(families=families, questions=questions)


def _questions(number: int, line: Mapping[str, Any]) -> list[Question]:
    messages = line["messages"]
    turns = [place for place, message in enumerate(messages) if message["role"] == "assistant"]
    return [_question(number, line, turn) for turn in turns[-MOST_ASKED:]]


def _question(number: int, line: Mapping[str, Any], turn: int) -> Question:
    answer = line["messages"][turn]
    thinking = "enabled" if "reasoning_content" in answer else "disabled"
    body: dict[str, Any] = {"messages": line["messages"][:turn], "thinking": {"type": thinking}}
    if "tools" in line:
        body["tools"] = line["tools"]
    return Question(family=line["family"], conversation=number, body=body, answer=answer)
