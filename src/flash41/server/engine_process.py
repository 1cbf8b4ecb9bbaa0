"""Starts the engine in a process of its own, asks it to open a model, and never leaves it behind.

    with EngineProcess(options, names) as process:     the interpreter starts and begins to load
        client = process.client()                      waits until the model is open; raises what it is refused with
        ...
                                                       the process is gone here, however the block ended

It is a new interpreter and no fork: this one's threads and locks stay here.  Nothing of the caller's program is
imported in it, so a script needs no guard around its main part.
"""

import contextlib
import json
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from flash41.errors import ConfigError, complaint
from flash41.server.engine_client import EngineClient
from flash41.server.messages import Lines, Opening, opening_line, read_answer

ORDERS = "flash41.server.engine_orders"
HOST = "flash41.server.engine_host"
PROGRAM = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    f"from {ORDERS} import begin; orders = begin(int(sys.argv[2])); from {HOST} import main; main(orders)"
)
"""The end of this process is seen before tensors are loaded, which takes seconds."""
PARTING_SECONDS = 1.0
"""Time for a process that hears its connection close to end by itself."""
PIECE_BYTES = 65_536


class EngineProcess:
    """The engine's process, seen from the one that started it."""

    def __init__(self, options: Mapping[str, Any], names: Sequence[str], *, logs_json: bool = False) -> None:
        self._connection, theirs = socket.socketpair()
        with theirs:
            self._process = _started(theirs)
        opening = Opening(options=options, names=tuple(names), logs_json=logs_json)
        with contextlib.suppress(OSError):  # it is gone already: `client` says so
            self._connection.sendall(opening_line(opening))

    @property
    def pid(self) -> int:
        """Number of the process."""
        return self._process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def client(self) -> EngineClient:
        """The service, once the model is open; raises the error it is refused with."""
        lines = Lines()
        while piece := self._received():
            for message in lines.feed(piece):
                return EngineClient(self._connection, read_answer(message), self)
        status = self._process.wait()
        raise ConfigError(complaint("engine's process", f"exit status {status}", "a model that opens", "see the log"))

    def wait(self, timeout_seconds: float) -> bool:
        """Whether the process has ended, or does in time."""
        try:
            self._process.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def end(self) -> None:
        """Hangs up, which ends the process; kills it if that is not heard."""
        self._connection.close()
        if not self.wait(PARTING_SECONDS):
            self._process.kill()
            self._process.wait()

    def _received(self) -> bytes:
        try:
            return self._connection.recv(PIECE_BYTES)
        except ConnectionError:
            return b""


def _started(theirs: socket.socket) -> "subprocess.Popen[bytes]":
    """An interpreter that finds what this one finds, and gets signals once it has said what to do with them."""
    number = theirs.fileno()
    command = [sys.executable, "-P", "-c", PROGRAM, json.dumps(sys.path), str(number)]
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
    try:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, pass_fds=(number,))
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
