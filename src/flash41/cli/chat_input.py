"""Where the messages of a chat come from: a terminal with editing and history, or the lines of a pipe.

Both give one message at a time.  In a pipe a message is a line; a backslash at its end goes on with the next line.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import platformdirs
import typer
from prompt_toolkit import PromptSession
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

CONTINUED = "\\"
PROMPT = "> "
OWNER_ONLY = 0o600
OWNER_FOLDER = 0o700


def piped_messages(stream: TextIO) -> Iterator[str]:
    """The messages of a pipe; a usage error says where it is no text."""
    held: list[str] = []
    try:
        for line in stream:
            text = line.rstrip("\r\n")
            if text.endswith(CONTINUED):
                held.append(text.removesuffix(CONTINUED))
                continue
            yield "\n".join([*held, text])
            held = []
    except UnicodeDecodeError as error:
        raise typer.BadParameter(f"{error}, expected text", param_hint="standard input") from error
    if held:
        yield "\n".join(held)


def typed_messages(history: History) -> Iterator[str]:
    """The messages of a terminal; Ctrl-C empties the line, Ctrl-D ends them."""
    session: PromptSession[str] = PromptSession(
        history=history,
        multiline=True,
        key_bindings=key_bindings(),
        prompt_continuation=lambda _width, _number, _wrapped: ". ",
    )
    while True:
        try:
            yield session.prompt(PROMPT)
        except KeyboardInterrupt:
            continue
        except EOFError:
            return


def key_bindings() -> KeyBindings:
    """Enter sends, unless a backslash stands before it; Alt-Enter begins a line."""
    keys = KeyBindings()

    @keys.add("enter")
    def send(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if buffer.document.char_before_cursor == CONTINUED:
            buffer.delete_before_cursor()
            buffer.insert_text("\n")
        else:
            buffer.validate_and_handle()

    @keys.add("escape", "enter")
    def begin_line(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    return keys


def history_path() -> Path:
    """Where typed messages are kept."""
    return platformdirs.user_state_path("flash41") / "chat-history"


def kept_history(path: Path) -> History:
    """The history in a file that only its owner may read; in memory where it cannot be written."""
    try:
        path.parent.mkdir(mode=OWNER_FOLDER, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, OWNER_ONLY)
        try:
            os.fchmod(descriptor, OWNER_ONLY)
        finally:
            os.close(descriptor)
    except OSError:
        return InMemoryHistory()
    return FileHistory(str(path))
