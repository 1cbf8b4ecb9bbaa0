"""`flash41 chat` in a terminal, typed at like a person does."""

import stat
import sys
from pathlib import Path

from helpers.command_line import PROGRAM, environment
from helpers.terminal import Terminal, terminal
from helpers.zygote import forked_python

FIGURES = r"\[(\d+) tokens.*?(\d+) of (\d+) prompt tokens cached(.*?)\]"
PROMPT = r"(?:^|[\r\n])>"
CTRL_C, CTRL_D, UP = "\x03", "\x04", "\x1b[A"


def command(python: list[str], model: Path, *options: str) -> list[str]:
    return [*python, "-c", PROGRAM, "chat", "--model", str(model), "--seed", "5", *options]


def env(state: Path) -> dict[str, str]:
    found = {**environment(), "XDG_STATE_HOME": str(state), "PYTHONWARNINGS": "error"}
    found.pop("NO_COLOR", None)
    return {**found, "TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1"}


def ask(screen: Terminal, keys: str) -> tuple[int, int]:
    """Types a message; tokens of its answer and of its prompt, when the next one can be typed."""
    screen.type(keys)
    found = screen.until(FIGURES)
    screen.until(PROMPT)
    return int(found[1]), int(found[3])


def order(screen: Terminal, line: str, told: str) -> None:
    """Types a command and waits for what it tells, and until the next line can be typed."""
    screen.type(f"{line}\r")
    screen.until(told)
    screen.until(PROMPT)


def test_a_conversation_is_typed(tiny_directory: Path, tmp_path: Path) -> None:
    with terminal(command(forked_python(), tiny_directory, "--max-tokens", "3"), env(tmp_path)) as screen:
        screen.until(r"/help lists commands\.")
        screen.until(PROMPT)
        num_tokens, short = ask(screen, "hello\r")
        assert num_tokens == 3
        assert ask(screen, "hello\r")[1] > short  # the first exchange is part of it
        order(screen, "/reset", "the conversation is forgotten")
        assert ask(screen, "hello\r")[1] == short
        order(screen, "/reset", "the conversation is forgotten")
        order(screen, "/system Be brief.", "the system text is set")
        assert ask(screen, "hello\r")[1] > short
        order(screen, "/system", "there is no system text")
        order(screen, "/reset", "the conversation is forgotten")
        order(screen, "/thinking on low", "thinking is on, effort low")
        assert ask(screen, "hello\r")[1] > short
        assert "\x1b[2m" in screen.written  # what is thought is dim
        order(screen, "/thinking off", "thinking is off")
        order(screen, "/reset", "the conversation is forgotten")
        order(screen, "/nonsense", "error.*/nonsense")
        # One message of two lines: begun with a backslash, with Alt-Enter, and taken from the history.
        lines = ask(screen, "hello\\\rhello\r")[1]
        assert lines > short
        order(screen, "/reset", "the conversation is forgotten")
        assert ask(screen, "hello\x1b\rhello\r")[1] == lines
        order(screen, "/reset", "the conversation is forgotten")
        screen.type(UP + UP)
        screen.until("hello")
        assert ask(screen, "\r")[1] == lines
        screen.type(CTRL_D)
        assert screen.end() == 0
    history = tmp_path / "flash41" / "chat-history"
    assert "+hello" in history.read_text()
    assert stat.S_IMODE(history.stat().st_mode) == 0o600


def test_an_interrupt_stops_the_answer_only_and_no_history_leaves_no_file(tiny_directory: Path, tmp_path: Path) -> None:
    # A process of its own: Ctrl-C is a signal of the terminal that it leads.
    with terminal(command([sys.executable], tiny_directory, "--no-history"), env(tmp_path)) as screen:
        screen.until(PROMPT)
        screen.type("never sent" + CTRL_C)
        screen.until(PROMPT)
        screen.type("hello\r")
        screen.until("hello")
        screen.until(r"\n[\s\S]{60}")  # streams: words are there while it goes on
        assert "prompt tokens cached" not in screen.text
        screen.type(CTRL_C)
        stopped = screen.until(FIGURES)
        assert stopped[4] == ", stopped"
        screen.until(PROMPT)
        assert screen.process.poll() is None
        screen.type("/exit\r")
        assert screen.end() == 0
        assert "Traceback" not in screen.text
    assert list(tmp_path.iterdir()) == []
