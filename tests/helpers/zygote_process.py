"""The zygote: has torch and flash41 imported, and forks a process for each command that `zygote_client.py` brings.

It only imports: no tensor is made here, so there are no threads that a fork would lose, and no random number is drawn.
Its single thread waits for clients, for the ends of children and for signals to pass on.  A client that goes away takes
its child with it, and the end of whoever started the zygote takes all of them.
"""

import contextlib
import gc
import importlib
import os
import pkgutil
import selectors
import signal
import socket
import threading
from dataclasses import dataclass

import flash41
from helpers.zygote_child import Command, become, declined, received, run
from helpers.zygote_client import DECLINED

NOT_IMPORTED = ("flash41.__main__",)
PIECE_BYTES = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Child:
    """A running command and who waits for it."""

    pid: int
    ended: int
    """A pidfd, readable once the process has ended."""
    client: socket.socket


def main(listener_number: int, life: int) -> None:
    """Serves until `life` is closed; in children, runs the command."""
    _warm()
    with socket.socket(fileno=listener_number) as listener:
        command = Zygote(listener, life).next_command()
    run(command)


def _warm() -> None:
    for module in pkgutil.walk_packages(flash41.__path__, "flash41."):
        if module.name not in NOT_IMPORTED:
            importlib.import_module(module.name)
    threads = len(os.listdir("/proc/self/task"))
    assert threading.active_count() == threads == 1, f"{threads} threads, of which a fork would keep one"
    gc.collect()
    gc.freeze()  # collections in children leave the shared memory alone


class Zygote:
    """Forks and waits."""

    def __init__(self, listener: socket.socket, life: int) -> None:
        self._listener = listener
        self._life = life
        self._children: list[Child] = []
        self._waiting = selectors.DefaultSelector()
        self._waiting.register(listener, selectors.EVENT_READ)
        self._waiting.register(life, selectors.EVENT_READ)

    def next_command(self) -> Command:
        """Returns in children only, each time with what it has to run."""
        while True:
            for key, _ in self._waiting.select():
                if key.fileobj is self._listener:
                    if command := self._fork():
                        return command
                elif key.fileobj == self._life:
                    self._end()
                elif key.data in self._children:
                    self._attend(key.data, ended=key.fd == key.data.ended)

    def _fork(self) -> Command | None:
        client = self._listener.accept()[0]
        command, streams = received(client)
        refused = declined(command)
        pid = None if refused else os.fork()
        if pid == 0:
            client.close()
            self._forget()
            become(command, streams)
            return command
        for number in streams:
            os.close(number)
        if pid is None:
            client.sendall(DECLINED)
            client.close()
            return None
        child = Child(pid=pid, ended=os.pidfd_open(pid), client=client)
        self._children.append(child)
        self._waiting.register(child.ended, selectors.EVENT_READ, child)
        self._waiting.register(child.client, selectors.EVENT_READ, child)
        return None

    def _forget(self) -> None:
        """A child keeps nothing open that is the zygote's."""
        self._waiting.close()
        self._listener.close()
        os.close(self._life)
        for child in self._children:
            child.client.close()
            os.close(child.ended)

    def _attend(self, child: Child, *, ended: bool) -> None:
        if not ended:
            with contextlib.suppress(ConnectionError):
                if numbers := child.client.recv(PIECE_BYTES):
                    for number in numbers:
                        os.kill(child.pid, number)
                    return
            os.kill(child.pid, signal.SIGKILL)  # nobody waits for it any more
        status = os.waitpid(child.pid, 0)[1]
        with contextlib.suppress(ConnectionError):
            child.client.sendall(str(status).encode())
        self._waiting.unregister(child.ended)
        self._waiting.unregister(child.client)
        os.close(child.ended)
        child.client.close()
        self._children.remove(child)

    def _end(self) -> None:
        for child in self._children:
            os.kill(child.pid, signal.SIGKILL)
            os.waitpid(child.pid, 0)
        os._exit(0)
