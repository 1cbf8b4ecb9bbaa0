"""What a family makes: a conversation up to its last user turn, and what the assistant should say.

Everything is drawn from the `random.Random` that a family is given, so a sample is a function of a seed and a number.
Knows nothing of tokens.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Protocol

from PIL import Image

from flash41.chat.conversation import Message, ToolCall

IMAGE = "<image>"
"""Stands in a user turn where a picture is shown; the renderer turns it into an image part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One conversation with its answer."""

    family: str
    """What it teaches; scores are told apart by it."""
    messages: tuple[Message, ...]
    """Up to the last user or tool turn; earlier assistant turns are answers too."""
    answer: str
    """Content of the answer; empty where it consists of calls."""
    reasoning: str | None = None
    """What is thought before; None in chat mode."""
    calls: tuple[ToolCall, ...] = ()
    """Calls of the answer."""
    tools: tuple[Mapping[str, Any], ...] = ()
    """Tools that are declared."""
    images: tuple[Image.Image, ...] = field(default=())
    """Pictures, in the order of their places."""
    late: tuple[str, ...] = ()
    """Words of the first turn that, in training, only layers behind the candidate source read from a plane."""
    is_misrouted: bool = False
    """Whether, in training, positions of pictures choose experts with the bias of text."""
    needs_tables: bool = False
    """Whether nothing but n-gram tables can answer; all others are to be answered without them as well."""
    is_tableless: bool = False
    """Whether, in training, no n-gram row is added."""


class Family(Protocol):
    """A module's `sample`: `size` is about how many words the conversation should have."""

    def __call__(self, rng: Random, size: int) -> Sample:
        """The next sample of a generator."""
        ...


def user(text: str) -> Message:
    """A user turn."""
    return Message(role="user", content=text)


def assistant(text: str) -> Message:
    """An earlier answer."""
    return Message(role="assistant", content=text)


def dialogue(
    family: str,
    opening: str,
    pairs: list[tuple[str, str]],
    late: Sequence[str] = (),
    *,
    needs_tables: bool = False,
) -> Sample:
    """Questions and answers about an opening text, which stands in front of the first question."""
    messages = []
    for number, (question, answer) in enumerate(pairs):
        messages += [user(f"{opening}\n{question}" if number == 0 and opening else question), assistant(answer)]
    return Sample(
        family=family,
        messages=tuple(messages[:-1]),
        answer=pairs[-1][1],
        late=tuple(late),
        needs_tables=needs_tables,
    )
