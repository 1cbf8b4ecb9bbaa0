"""`flash41 chat` through a pipe, and what it writes to a terminal; the terminal itself is in the system tests."""

import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import typer.testing

from flash41.chat.conversation import Message
from flash41.cli import chat as command
from flash41.cli.main import build_app
from flash41.engine.llm import LLM
from flash41.engine.request import SamplingParams
from flash41.errors import RequestError
from flash41.tools.chat_session import Piece, TurnFigures
from helpers.scripted import SAMPLER, scripted

EOS = 1
SHORT = ("--max-tokens", "4", "--seed", "5")


def talk(lines: str, *arguments: str) -> typer.testing.Result:
    return typer.testing.CliRunner().invoke(build_app(), ["chat", *arguments], input=lines)


@pytest.fixture(scope="module")
def llm(default_directory: Path) -> LLM:
    return LLM(default_directory, max_num_seqs=1)


def expected(llm: LLM, *turns: str, system: str | None = None) -> list[str]:
    """What the library answers to the same turns."""
    params = SamplingParams(max_tokens=4, seed=5)
    messages = [] if system is None else [Message(role="system", content=system)]
    answers = []
    for turn in turns:
        messages.append(Message(role="user", content=turn))
        answers.append(llm.chat(messages, params).text)
        messages.append(Message(role="assistant", content=answers[-1]))
    return answers


def test_lines_in_answers_out(llm: LLM) -> None:
    found = talk("hello\n\nand\\\nmore\n", *SHORT)
    assert found.exit_code == 0, found.exception
    assert found.stdout == "".join(f"{answer}\n" for answer in expected(llm, "hello", "and\nmore"))
    assert found.stderr == ""


def test_drafts_change_no_answer_and_say_nothing_in_a_pipe(llm: LLM) -> None:
    found = talk("hello\nand more\n", *SHORT, "--draft", "on")
    assert found.stdout == "".join(f"{answer}\n" for answer in expected(llm, "hello", "and more"))
    assert found.stderr == ""


def test_commands_are_obeyed_and_say_nothing_in_a_pipe(llm: LLM) -> None:
    found = talk("hello\n/reset\n/system Be brief.\nhello\n/exit\nnever\n", *SHORT)
    answers = [*expected(llm, "hello"), *expected(llm, "hello", system="Be brief.")]
    assert found.stdout == "".join(f"{answer}\n" for answer in answers)


def test_reasoning_stands_in_its_own_tags(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = llm.tokenizer.encode_with_control("because</think>Hi")
    monkeypatch.setattr(SAMPLER, scripted(*tokens, EOS))
    assert talk("hello\n", "--thinking", "--effort", "low").stdout == "<think>because</think>\nHi\n"


def test_a_refusal_ends_a_pipe(llm: LLM) -> None:
    found = talk("/nonsense\nhello\n", *SHORT)
    assert found.exit_code == 1
    assert isinstance(found.exception, RequestError)
    assert found.stdout == ""


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("--effort", "low"), "--thinking"),
        (("--thinking", "--effort", "0"), "1 to 100"),
        (("--max-tokens", "0"), "--max-tokens"),
    ],
)
def test_wrong_usage_is_told(arguments: tuple[str, ...], word: str) -> None:
    found = talk("", *arguments)
    assert found.exit_code == 2
    assert word in found.stderr


def test_a_pipe_of_bytes_is_wrong_usage() -> None:
    found = typer.testing.CliRunner().invoke(build_app(), ["chat", *SHORT], input=b"\xff\xfe\n")
    assert found.exit_code == 2
    assert "expected text" in found.stderr


# What a terminal is shown.


class Played:
    """An answer that needs no model; `interrupts_at` presses Ctrl-C behind that piece."""

    def __init__(self, *pieces: tuple[str, bool], interrupts_at: tuple[int, ...] = ()) -> None:
        self.pieces = [Piece(text=text, is_reasoning=is_reasoning) for text, is_reasoning in pieces]
        self.interrupts_at = interrupts_at
        self.num_closed = 0
        self.figures = TurnFigures(
            num_tokens=3, num_prompt_tokens=9, num_cached_tokens=4, tokens_per_second=2.5, ending="abort"
        )

    def __iter__(self) -> Iterator[Piece]:
        for index, piece in enumerate(self.pieces):
            for _ in range(self.interrupts_at.count(index)):
                os.kill(os.getpid(), signal.SIGINT)
            yield piece

    def close(self) -> None:
        self.num_closed += 1


def shown(turn: Played, capsys: pytest.CaptureFixture[str]) -> str:
    command._Terminal(None).answer(turn)
    return capsys.readouterr().out


def test_what_came_of_drafts_stands_among_the_figures(capsys: pytest.CaptureFixture[str]) -> None:
    turn = Played(("so", False))
    turn.figures = replace(turn.figures, num_draft_tokens=10, num_accepted_tokens=2)
    assert "4 of 9 prompt tokens cached, 2 of 10 drafts accepted, stopped]" in shown(turn, capsys)


FIGURES = "[3 tokens, 2.5 tokens/s, 4 of 9 prompt tokens cached, stopped]"


def test_reasoning_is_dim_and_figures_follow(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    turn = Played(("why", True), ("so", False))
    assert shown(turn, capsys) == f"\x1b[2mwhy\x1b[0m\n\nso\n\x1b[2m{FIGURES}\x1b[0m\n"
    assert turn.num_closed == 1


def test_without_colors_there_is_no_escape(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    assert shown(Played(("why", True), ("so", False)), capsys) == f"<think>why</think>\nso\n{FIGURES}\n"


def test_an_approximate_answer_says_so(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    command._Terminal(None, ["decoder-replay"]).answer(Played(("so", False)))
    assert capsys.readouterr().out.endswith(f"{FIGURES[:-1]}, approximate: decoder-replay]\n")


def test_an_answer_cannot_command_the_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    text = shown(Played(("a\x1b]0;title\x07\x9b2J\r\x7f\tb\n\u00e9", False)), capsys)
    assert text.startswith("a^[]0;title^G\ufffd2J^M^?\tb\n\u00e9\n")


def test_one_interrupt_ends_the_answer_behind_a_piece(capsys: pytest.CaptureFixture[str]) -> None:
    before = signal.getsignal(signal.SIGINT)
    turn = Played(("one ", False), ("two ", False), ("three", False), interrupts_at=(1,))
    text = shown(turn, capsys)
    assert "one two \n" in text
    assert "three" not in text
    assert turn.num_closed == 1
    assert signal.getsignal(signal.SIGINT) is before


def test_the_second_interrupt_breaks_off_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    turn = Played(("one ", False), ("two", False), interrupts_at=(1, 1))
    text = shown(turn, capsys)
    assert "two" not in text
    assert turn.num_closed == 1


def test_a_refusal_is_told_and_ends_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    assert sys.stderr is not None
    command._Terminal(None).talk(iter(["/nonsense", "  ", "/help", "/exit", "/help"]))
    found = capsys.readouterr()
    assert found.err.startswith("error: command: ")
    assert found.out.count("/reset") == 1
