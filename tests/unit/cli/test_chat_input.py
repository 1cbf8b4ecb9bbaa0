import io
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from prompt_toolkit.application import create_app_session
from prompt_toolkit.history import FileHistory, InMemoryHistory
from prompt_toolkit.input import PipeInput, create_pipe_input
from prompt_toolkit.output import DummyOutput

from flash41.cli.chat_input import history_path, kept_history, piped_messages, typed_messages


@pytest.fixture
def keyboard() -> Iterator[PipeInput]:
    with create_pipe_input() as found, create_app_session(input=found, output=DummyOutput()):
        yield found


@pytest.mark.parametrize(
    ("text", "messages"),
    [
        ("one\ntwo\n", ["one", "two"]),
        ("one\r\ntwo", ["one", "two"]),
        ("one\\\ntwo\\\n\nthree\n", ["one\ntwo\n", "three"]),
        ("one\\", ["one"]),
        ("", []),
        ("\n \n", ["", " "]),
    ],
)
def test_a_line_of_a_pipe_is_a_message_and_a_backslash_goes_on(text: str, messages: list[str]) -> None:
    assert list(piped_messages(io.StringIO(text, newline=""))) == messages


def test_bytes_that_are_no_text_are_a_usage_error() -> None:
    stream = io.TextIOWrapper(io.BytesIO(b"\xff\n"), encoding="utf-8")
    with pytest.raises(typer.BadParameter, match="expected text"):
        list(piped_messages(stream))


@pytest.mark.parametrize(
    ("keys", "messages"),
    [
        ("one\rtwo\r\x04", ["one", "two"]),
        ("one\x1b\rtwo\r\x04", ["one\ntwo"]),
        ("one\\\rtwo\r\x04", ["one\ntwo"]),
        ("lost\x03kept\r\x04", ["kept"]),
        ("\x1b[200~one\ntwo\x1b[201~\r\x04", ["one\ntwo"]),
        ("\x04", []),
    ],
    ids=["enter", "alt-enter", "backslash", "ctrl-c", "paste", "ctrl-d"],
)
def test_keys_become_messages(keyboard: PipeInput, keys: str, messages: list[str]) -> None:
    keyboard.send_text(keys)
    assert list(typed_messages(InMemoryHistory())) == messages


def test_the_history_is_a_file_that_only_its_owner_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keyboard: PipeInput
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    path = history_path()
    assert path == tmp_path / "state" / "flash41" / "chat-history"
    keyboard.send_text("a secret\r\x04")
    assert list(typed_messages(kept_history(path))) == ["a secret"]
    assert "a secret" in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_a_history_that_others_could_read_is_closed_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "chat-history"
    path.write_text("\n# once\n+before\n")
    path.chmod(0o644)
    history = kept_history(path)
    assert isinstance(history, FileHistory)
    assert list(history.load_history_strings()) == ["before"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_where_no_file_can_be_the_history_is_in_memory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert isinstance(kept_history(tmp_path / "file" / "chat-history"), InMemoryHistory)
    assert os.listdir(tmp_path) == ["file"]
