"""A conversation with the model, turn by turn; whoever shows it reads pieces and may stop an answer.

    session.ask("hello")  ->  Turn: iterate for pieces, close to stop; when it has ended the session has grown by both

An answer that was stopped counts as said so far; one without a word leaves the conversation as it was.  The whole
conversation is sent every time, and what the prefix cache still holds of it is not computed again.
"""

import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from flash41.chat.conversation import Effort, Message
from flash41.chat.images import Picture
from flash41.chat.parsing import Delta, DeltaKind
from flash41.chat.parts import STAND_IN, Content, Image
from flash41.engine.answers import StreamEvent
from flash41.engine.llm import LLM
from flash41.engine.prompt_images import num_widened
from flash41.engine.request import FinishReason, SamplingParams
from flash41.tools.picture_files import open_pictures


@dataclass(frozen=True, slots=True, kw_only=True)
class Manner:
    """How the next answer is to be given."""

    system: str | None = None
    """Text in front of the conversation."""
    thinking: bool = False
    """Whether the model reasons first."""
    effort: Effort | None = None
    """How hard, with thinking; None is the codec's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Text of an answer as it comes."""

    text: str
    is_reasoning: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnFigures:
    """What an answer took."""

    num_tokens: int
    """Tokens of the answer, EOS included."""
    num_prompt_tokens: int
    num_cached_tokens: int
    """Of the prompt, not computed again."""
    tokens_per_second: float | None
    """Without the wait for the first; None where there was only one."""
    ending: str
    """stop, length, or abort where it was stopped."""
    num_draft_tokens: int = 0
    """Drafts that were verified for the answer; 0 without drafting."""
    num_accepted_tokens: int = 0
    """Tokens of the answer that were drafts."""


class ChatSession:
    """One conversation; `manner` may be changed between answers."""

    def __init__(self, llm: LLM, params: SamplingParams, manner: Manner) -> None:
        self.manner = manner
        self.messages: list[Message] = []
        """Turns of both sides, without the system text."""
        self.pictures: list[Picture] = []
        """Those of all turns, in order."""
        self.attached: list[Picture] = []
        """Those that the next message will show."""
        self._llm = llm
        self._params = params

    def reset(self) -> None:
        """Forgets all turns and pictures; the manner stays."""
        for kept in (self.messages, self.pictures, self.attached):
            kept.clear()

    def attach(self, file: Path) -> Picture:
        """Shows a picture with the next message.  Raises RequestError for a file that is refused."""
        (found,) = open_pictures([file], self._llm.config)
        self.attached.append(found)
        return found

    def ask(self, text: str) -> "Turn":
        """The answer to one more message.  Raises RequestError for what the model cannot take; nothing changes then.

        Pictures that were attached stand in front of its text.
        """
        content: Content = (*[Image(STAND_IN)] * len(self.attached), text) if self.attached else text
        turn = Turn(self._llm, self._params, self, Message(role="user", content=content))
        self.attached = []
        return turn


class Turn:
    """An answer in the making.  Iterate over its pieces; `close` stops it; either way the conversation then has it."""

    def __init__(self, llm: LLM, params: SamplingParams, session: ChatSession, said: Message) -> None:
        codec, manner = llm.codec, session.manner
        first = [] if manner.system is None else [Message(role="system", content=manner.system)]
        messages = [*first, *session.messages, said]
        conversation = codec.conversation(messages, thinking=manner.thinking, effort=manner.effort)
        prompt_ids = codec.encode(conversation).ids
        self._attached = list(session.attached)
        pictures = [*session.pictures, *self._attached]
        self._events = llm.stream(prompt_ids, params, pictures=pictures)  # refuses here what it cannot compute
        self._eos = llm.config.tokens.eos
        self._engine = llm.engine
        self._parser = codec.parser(conversation)
        self._session = session
        self._said = said
        self._times: list[float] = []
        self._texts = {True: "", False: ""}
        self._before = llm.engine.stats
        self._figures = TurnFigures(
            num_tokens=0,
            num_prompt_tokens=num_widened(prompt_ids, pictures),
            num_cached_tokens=0,
            tokens_per_second=None,
            ending=FinishReason.ABORT.value,
        )
        self._pieces = self._read()

    @property
    def figures(self) -> TurnFigures:
        """What the answer has taken so far."""
        return self._figures

    def __iter__(self) -> Iterator[Piece]:
        return self._pieces

    def close(self) -> None:
        """Stops the answer; of a finished one there is nothing to stop."""
        self._pieces.close()

    def _read(self) -> Generator[Piece, None, None]:
        ending = "stop"
        try:
            for event in self._events:
                self._book(event)
                if event.finish_reason is not None:
                    ending = event.finish_reason.value
                if event.token.token_id != self._eos:  # which ends the message and is no part of it
                    yield from self._shown(self._parser.push(event.token.token_id))
            yield from self._shown(self._parser.finish("length" if ending == "length" else "stop"))
        finally:
            self._events.close()
            self._keep()

    def _book(self, event: StreamEvent) -> None:
        self._times.append(time.perf_counter())
        count, seconds = len(self._times), self._times[-1] - self._times[0]
        before, now = self._before, self._engine.stats
        if count == 1:
            self._figures = replace(self._figures, num_cached_tokens=now.cached_tokens - before.cached_tokens)
        self._figures = replace(
            self._figures,
            num_tokens=count,
            num_draft_tokens=sum(now.drafted_tokens) - sum(before.drafted_tokens),
            num_accepted_tokens=sum(now.accepted_tokens) - sum(before.accepted_tokens),
            tokens_per_second=(count - 1) / seconds if seconds > 0 else None,
            ending=(event.finish_reason or FinishReason.ABORT).value,
        )

    def _shown(self, deltas: list[Delta]) -> Iterator[Piece]:
        for delta in deltas:
            if delta.text:
                piece = Piece(text=delta.text, is_reasoning=delta.kind is DeltaKind.REASONING)
                self._texts[piece.is_reasoning] += piece.text
                yield piece

    def _keep(self) -> None:
        content, reasoning = self._texts[False], self._texts[True]
        if content:
            answer = Message(role="assistant", content=content, reasoning=reasoning or None)
            self._session.messages += [self._said, answer]
            self._session.pictures += self._attached
