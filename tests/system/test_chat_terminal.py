"""`flash41 chat` in a terminal, typed at like a person does."""

import stat
import sys
from pathlib import Path

from helpers.command_line import PROGRAM, environment
from helpers.terminal import Terminal, terminal

FIGURES = r"\[(\d+) tokens.*?(\d+) of (\d+) prompt tokens cached(.*?)\]"
PROMPT = r"(?:^|[\r\n])>"
CTRL_C, CTRL_D, UP = "\x03", "\x04", "\x1b[A"


def command(*options: str) -> list[str]:
    return [sys.executable, "-c", PROGRAM, "chat", "--seed", "5", *options]


def env(cache: Path, state: Path) -> dict[str, str]:
    found = {**environment(cache=cache), "XDG_STATE_HOME": str(state), "PYTHONWARNINGS": "error"}
    found.pop("NO_COLOR", None)
    return {**found, "TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1"}


def figures(screen: Terminal) -> tuple[int, int]:
    """Tokens of the answer and of the prompt, when the figures of an answer appear."""
    found = screen.until(FIGURES)
    screen.until(PROMPT)
    return int(found[1]), int(found[3])


def test_a_conversation_is_typed(default_cache: Path, tmp_path: Path) -> None:
    with terminal(command("--max-tokens", "3"), env(default_cache, tmp_path)) as screen:
        screen.until(r"/help lists commands\.")
        screen.until(PROMPT)
        screen.type("hello\r")
        num_tokens, short = figures(screen)
        assert num_tokens == 3
        screen.type("hello\r")
        assert figures(screen)[1] > short  # the first exchange is part of it
        screen.type("/reset\r")
        screen.until("the conversation is forgotten")
        screen.type("hello\r")
        assert figures(screen)[1] == short
        screen.type("/reset\r/system Be brief.\r")
        screen.until("the system text is set")
        screen.type("hello\r")
        assert figures(screen)[1] > short
        screen.type("/system\r/reset\r/thinking on low\r")
        screen.until("thinking is on, effort low")
        screen.type("hello\r")
        assert figures(screen)[1] > short
        assert "\x1b[2m" in screen.written
        screen.type("/thinking off\r/reset\r/nonsense\r")
        screen.until("error.*/nonsense")
        # One message of two lines, begun with a backslash, then the same with Alt-Enter.
        screen.type("hello\\\rhello\r")
        lines = figures(screen)[1]
        assert lines > short
        screen.type("/reset\r")
        screen.until("forgotten")
        screen.type("hello\x1b\rhello\r")
        assert figures(screen)[1] == lines
        screen.type("/reset\r")
        screen.until("forgotten")
        screen.until(PROMPT)
        screen.type(UP + UP)  # the message before, whose last line is where one is now
        screen.until("hello")
        screen.type("\r")
        assert figures(screen)[1] == lines
        screen.type(CTRL_D)
        assert screen.end() == 0
    history = tmp_path / "flash41" / "chat-history"
    assert "+hello" in history.read_text()
    assert stat.S_IMODE(history.stat().st_mode) == 0o600


def test_an_interrupt_stops_the_answer_only_and_no_history_leaves_no_file(default_cache: Path, tmp_path: Path) -> None:
    with terminal(command("--no-history"), env(default_cache, tmp_path)) as screen:
        screen.until(PROMPT)
        screen.type("never sent" + CTRL_C)
        screen.until(PROMPT)
        screen.type("hello\r")
        screen.until(r"hello\s+\S+\s+\S+")  # streams: words are there while it goes on
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
