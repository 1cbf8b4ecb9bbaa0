"""What reaches the engine's process, from its first moment on: orders, and the end of the other side.

    SIGINT, SIGTERM       nothing: whoever started it decides when open answers are finished, and says `stop`
    the socket closes     the end at once: whoever started it is gone, and nobody waits for anything any more

Loads no tensors: loading them takes seconds, in which whoever started the process may go away too.
"""

import contextlib
import os
import queue
import signal
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from flash41.engine.request import Constraint, StopWatcher
from flash41.errors import Flash41Error
from flash41.server.messages import Opening, Order, Stop, message_of, read_opening, read_order

ALONE = 2
"""Exit status when the other side went away."""

Leave = Callable[[int], object]
"""Ends the process with a status."""


class AnswerConstraint(Constraint, Protocol):
    """Restricts the tokens of one answer, and knows whether it could to the end."""

    def check(self) -> None:
        """Raises RequestError if it broke the answer off."""
        ...


@dataclass(frozen=True, slots=True)
class Prepared:
    """What a job described, made; or why it could not be."""

    job_id: int
    watcher: StopWatcher | None = None
    constraint: AnswerConstraint | None = None
    failure: Flash41Error | None = None


class Inbox(queue.SimpleQueue[Order | Prepared]):
    """What the loop is to take, from any thread."""


class Orders:
    """Reads one end of a connection, in a thread of its own."""

    def __init__(self, connection: socket.socket, leave: Leave) -> None:
        self.connection = connection
        self.leave = leave
        self.inbox = Inbox()
        self._openings: queue.SimpleQueue[Opening | None] = queue.SimpleQueue()
        threading.Thread(target=self._listen, name="orders", daemon=True).start()

    def opening(self) -> Opening | None:
        """What is to be opened, once it is said; None if that will never be."""
        return self._openings.get()

    def _listen(self) -> None:
        with contextlib.suppress(OSError):
            for line in self.connection.makefile("rb"):
                message = message_of(line)
                if message[0] == "open":
                    self._openings.put(read_opening(message))
                else:
                    self.inbox.put(read_order(message))
        self.leave(ALONE)
        self._openings.put(None)
        self.inbox.put(Stop())


def begin(socket_number: int) -> Orders:
    """The first thing that the process does."""
    keep_signals_away()
    return Orders(socket.socket(fileno=socket_number), os._exit)


def keep_signals_away() -> None:
    """Signals that a terminal sends to all processes do nothing here.

    A handler and not SIG_IGN: compilers that this process starts would inherit the latter, and outlive Ctrl-C.
    """
    ending = (signal.SIGINT, signal.SIGTERM)
    for number in ending:
        signal.signal(number, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ending)  # blocked by whoever started it, until here
