"""A program in a terminal of its own, and somebody who types."""

import contextlib
import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Iterator, Mapping, Sequence

PATIENCE_SECONDS = 60
SIZE = (40, 100)
ESCAPE = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07]*\x07|[()][0-9A-B]|[=>])|\x1b[^a-zA-Z]*$")


class Terminal:
    """What the program wrote, without escapes, and a keyboard."""

    def __init__(self, master: int, process: "subprocess.Popen[bytes]") -> None:
        self._master = master
        self._raw = b""
        self._read = 0
        self.process = process

    @property
    def text(self) -> str:
        """Everything that was written."""
        return ESCAPE.sub("", self.written)

    @property
    def written(self) -> str:
        """The same with its escapes."""
        return self._raw.decode("utf-8", "replace")

    def type(self, keys: str) -> None:
        """Presses keys."""
        os.write(self._master, keys.encode())

    def until(self, pattern: str) -> "re.Match[str]":
        """Waits for a text behind what was found last."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            text = self.text
            if found := re.compile(pattern).search(text, self._read):
                self._read = found.end()
                return found
            assert time.monotonic() < deadline, (pattern, text[self._read :])
            assert self._receive(), (pattern, text[self._read :])

    def end(self) -> int:
        """Waits for the end of the program; its status."""
        while self._receive():
            pass
        return self.process.wait(PATIENCE_SECONDS)

    def _receive(self) -> bool:
        """Takes what was written; false when the program is gone."""
        if not select.select([self._master], [], [], 0.2)[0]:
            return True
        try:
            piece = os.read(self._master, 65536)
        except OSError:  # how Linux says that the other side is closed
            return False
        self._raw += piece
        return bool(piece)


@contextlib.contextmanager
def terminal(command: Sequence[str], env: Mapping[str, str]) -> Iterator[Terminal]:
    """A program that believes a person sits in front of it; killed if it is still there at the end."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", *SIZE, 0, 0))

    def own_terminal() -> None:
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # so that Ctrl-C is a signal

    process = subprocess.Popen(
        list(command), stdin=slave, stdout=slave, stderr=slave, env=dict(env), preexec_fn=own_terminal
    )
    os.close(slave)
    try:
        yield Terminal(master, process)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(PATIENCE_SECONDS)
        os.close(master)
