"""`flash41 chat`: a conversation in the terminal, or through a pipe."""

import contextlib
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import typer

from flash41.cli import options
from flash41.cli.common import print_error
from flash41.cli.effort import Effort, effort_of
from flash41.cli.engine_options import EngineOptions, takes_engine
from flash41.errors import RequestError

DIM = "\x1b[2m"
PLAIN = "\x1b[0m"
ESCAPES = {code: f"^{chr(code ^ 64)}" for code in [*range(9), *range(11, 32), 127]} | dict.fromkeys(
    range(128, 160), "\ufffd"
)
"""Control characters as a terminal may show them: an answer must not move its cursor or change its title."""


@takes_engine("max_num_seqs")
def chat(
    model: options.Model = None,
    thinking: Annotated[bool, typer.Option("--thinking", help="Let the model reason before it answers.")] = False,
    effort: Effort = None,
    system: Annotated[str | None, typer.Option("--system", metavar="S", help="System text in front.")] = None,
    max_tokens: Annotated[
        int | None, typer.Option("--max-tokens", min=1, help="Longest answer in tokens. [default: all that fit]")
    ] = None,
    temperature: Annotated[float, typer.Option("--temperature", help="0 takes the likeliest token.")] = 1.0,
    top_p: Annotated[float, typer.Option("--top-p", help="Keep the likeliest tokens that reach this mass.")] = 1.0,
    seed: Annotated[int | None, typer.Option("--seed", help="Same seed, same answers. [default: drawn]")] = None,
    no_history: Annotated[bool, typer.Option("--no-history", help="Keep no file of what was typed.")] = False,
    *,
    engine: EngineOptions,
) -> None:
    """Talk with the model; /help lists what can be typed besides messages.

    Enter sends, Alt-Enter begins a line, Ctrl-C stops an answer, Ctrl-D leaves. In a pipe every line is a message, and
    the answers are written one below the other. Without --model the embedded default answers, a small trained model:
    say "Hello!", or tell it a short story and ask about it in the same message.
    """
    if effort is not None and not thinking:
        raise typer.BadParameter("needs --thinking", param_hint="--effort")
    level = effort_of(effort)
    from flash41.cli.chat_input import history_path, kept_history, piped_messages, typed_messages
    from flash41.engine.request import SamplingParams
    from flash41.tools.chat_session import ChatSession, Manner

    llm = engine.open(model, max_num_seqs=1)
    longest = llm.plan.max_model_len if max_tokens is None else max_tokens
    params = SamplingParams(max_tokens=longest, temperature=temperature, top_p=top_p, seed=seed)
    session = ChatSession(llm, params, Manner(system=system, thinking=thinking, effort=level))
    if sys.stdin.isatty() and sys.stdout.isatty():
        from prompt_toolkit.history import InMemoryHistory

        label = engine.approximate
        typer.echo(f"{llm.directory.name}, up to {llm.plan.max_model_len:,} tokens. /help lists commands.")
        history = InMemoryHistory() if no_history else kept_history(history_path())
        _Terminal(session, label).talk(typed_messages(history))
    else:
        _Pipe(session).talk(piped_messages(sys.stdin))


class _Pipe:
    """Messages in, answers out, and nothing else on standard output.  What is refused ends it."""

    def __init__(self, session: Any) -> None:
        self._session = session

    def talk(self, messages: Iterator[str]) -> None:
        from flash41.cli.chat_commands import message_of, obey

        for line in messages:
            if not line.strip():
                continue
            try:
                done = obey(self._session, line)
                if done is None:
                    self.answer(self._session.ask(message_of(line)))
                    continue
            except RequestError as error:
                self.refuse(error)
                continue
            if done.leaves:
                return
            self.tell(done.told)

    def answer(self, turn: Any) -> None:
        was_reasoning = False
        for piece in turn:
            self.write(self.between(was_reasoning, piece.is_reasoning) + piece.text)
            was_reasoning = piece.is_reasoning
        self.write("\n")

    def between(self, was_reasoning: bool, is_reasoning: bool) -> str:
        """What stands where reasoning begins and ends."""
        if was_reasoning == is_reasoning:
            return ""
        return "<think>" if is_reasoning else "</think>\n"

    def refuse(self, error: RequestError) -> None:
        raise error

    def tell(self, text: str) -> None:
        """News of a command, which no reader of answers waits for."""

    def write(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()


class _Terminal(_Pipe):
    """The same for a person: dim reasoning, figures, errors that end nothing, and Ctrl-C for the answer only."""

    def __init__(self, session: Any, approximate: Sequence[str] = ()) -> None:
        super().__init__(session)
        self._approximate = approximate
        self._has_color = not os.environ.get("NO_COLOR")

    def answer(self, turn: Any) -> None:
        was_reasoning = False
        with _interrupts() as stops, contextlib.suppress(KeyboardInterrupt), contextlib.closing(turn):
            for piece in turn:
                between = self.between(was_reasoning, piece.is_reasoning)
                self.write(between + piece.text.translate(ESCAPES))
                was_reasoning = piece.is_reasoning
                if stops:
                    break
        self.write((PLAIN if was_reasoning and self._has_color else "") + "\n")
        self.tell(_figures(turn.figures, self._approximate))

    def between(self, was_reasoning: bool, is_reasoning: bool) -> str:
        if not self._has_color:
            return super().between(was_reasoning, is_reasoning)
        if was_reasoning == is_reasoning:
            return ""
        return DIM if is_reasoning else f"{PLAIN}\n\n"

    def refuse(self, error: RequestError) -> None:
        print_error(str(error))

    def tell(self, text: str) -> None:
        self.write(f"{DIM}{text}{PLAIN}\n" if self._has_color else f"{text}\n")


@contextlib.contextmanager
def _interrupts() -> Iterator[list[int]]:
    """Ctrl-C notes itself in the list, so that the step is finished first; the second time it breaks the step off."""
    noted: list[int] = []

    def note(number: int, _frame: Any) -> None:
        if noted:
            raise KeyboardInterrupt
        noted.append(number)

    before = signal.signal(signal.SIGINT, note)
    try:
        yield noted
    finally:
        signal.signal(signal.SIGINT, before)


def _figures(figures: Any, approximate: Sequence[str]) -> str:
    """One line: ``[42 tokens, 31.5 tokens/s, 64 of 80 prompt tokens cached]``."""
    words = [f"{figures.num_tokens} tokens"]
    if figures.tokens_per_second is not None:
        words.append(f"{figures.tokens_per_second:.1f} tokens/s")
    words.append(f"{figures.num_cached_tokens} of {figures.num_prompt_tokens} prompt tokens cached")
    if figures.num_draft_tokens:
        words.append(f"{figures.num_accepted_tokens} of {figures.num_draft_tokens} drafts accepted")
    ends = {"length": "cut at the longest length", "abort": "stopped"}
    if figures.ending in ends:
        words.append(ends[figures.ending])
    if approximate:
        words.append(f"approximate: {', '.join(approximate)}")
    return f"[{', '.join(words)}]"
