from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from flash41.chat.conversation import Message
from flash41.cli.chat_commands import HELP, NAMES, Done, message_of, obey
from flash41.errors import RequestError
from flash41.tools.chat_session import ChatSession, Manner
from helpers.config_documents import tiny_config
from helpers.image_files import encoded, pattern


@pytest.fixture
def session() -> ChatSession:
    found = ChatSession(cast(Any, None), cast(Any, None), Manner(system="old"))
    found.messages.append(Message(role="user", content="hello"))
    return found


@pytest.mark.parametrize("line", ["hello", "", " /reset", "//reset", "1/2"])
def test_what_is_no_command_is_a_message(session: ChatSession, line: str) -> None:
    assert obey(session, line) is None
    assert session.messages


def test_two_slashes_begin_a_message_with_one() -> None:
    assert message_of("//reset") == "/reset"
    assert message_of("a // b") == "a // b"


def test_reset_forgets_the_turns(session: ChatSession) -> None:
    assert obey(session, "/reset") == Done(told="the conversation is forgotten")
    assert (session.messages, session.manner.system) == ([], "old")


@pytest.mark.parametrize(
    ("line", "system"),
    [
        ("/system Be brief.", "Be brief."),
        ("/system  two\nlines ", "two\nlines"),
        ("/system", None),
        ("/system  ", None),
    ],
)
def test_system_sets_the_text_and_keeps_the_turns(session: ChatSession, line: str, system: str | None) -> None:
    done = obey(session, line)
    assert done is not None
    assert done.told == ("the system text is set" if system else "there is no system text")
    assert session.manner.system == system
    assert session.messages


@pytest.mark.parametrize(
    ("line", "thinking", "effort"),
    [
        ("/thinking on", True, None),
        ("/thinking on max", True, "max"),
        ("/thinking on 33", True, 33),
        ("/thinking off", False, None),
    ],
)
def test_thinking_sets_the_manner(session: ChatSession, line: str, thinking: bool, effort: str | int | None) -> None:
    assert obey(session, line) is not None
    assert session.manner == Manner(system="old", thinking=thinking, effort=effort)


@pytest.mark.parametrize(
    "line",
    ["/thinking", "/thinking maybe", "/thinking off low", "/thinking on 0", "/thinking on much", "/thinking on 1 2"],
)
def test_thinking_without_sense_is_refused(session: ChatSession, line: str) -> None:
    with pytest.raises(RequestError, match="on or off"):
        obey(session, line)
    assert session.manner == Manner(system="old")


@pytest.mark.parametrize("line", ["/", "/nonsense", "/resets", "/reset now", "/exit 1", "/Reset"])
def test_an_unknown_command_is_refused_with_those_there_are(session: ChatSession, line: str) -> None:
    with pytest.raises(RequestError) as found:
        obey(session, line)
    assert all(name in str(found.value) for name in NAMES)
    assert session.messages


def test_exit_leaves_and_help_names_every_command(session: ChatSession) -> None:
    assert obey(session, "/exit") == Done(told="", leaves=True)
    assert obey(session, "/help") == Done(told=HELP)
    assert all(name in HELP for name in NAMES)


def test_image_attaches_a_file_and_tells_its_cost(
    session: ChatSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "a picture.png").write_bytes(encoded(pattern(60, 45)))
    session._llm = cast(Any, SimpleNamespace(config=tiny_config()))
    assert obey(session, "/image ~/a picture.png") == Done(told="the next message shows ~/a picture.png, 10 tokens")
    assert len(session.attached) == 1
    with pytest.raises(RequestError, match=r"image .*missing\.png: got"):
        obey(session, "/image missing.png")
    with pytest.raises(RequestError, match="command: got '/image'"):
        obey(session, "/image")
