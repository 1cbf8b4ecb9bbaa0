"""`flash41 serve` as a process of its own."""

import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from helpers.command_line import PROGRAM, environment

PATIENCE_SECONDS = 120
LISTENING = "listening at "


@dataclass
class ServerProcess:
    """A running server."""

    process: "subprocess.Popen[str]"
    url: str
    said: list[str]
    """Lines of standard output up to the URL."""
    log: list[str] = field(default_factory=list)
    """Lines of standard error."""

    def end(self, number: int = signal.SIGTERM) -> int:
        """Sends a signal and waits; the exit status."""
        self.process.send_signal(number)
        return self.process.wait(PATIENCE_SECONDS)


@contextlib.contextmanager
def serving(cache: Path, *options: str) -> Iterator[ServerProcess]:
    """A server with the embedded default on a free port; killed if it is still there at the end."""
    command = [sys.executable, "-c", PROGRAM, "serve", "--port", "0", *options]
    env = {**environment(cache=cache), "PYTHONWARNINGS": "error", "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
    assert process.stdout is not None
    assert process.stderr is not None
    log: list[str] = []
    lines: queue.Queue[str] = queue.Queue()
    readers = [
        threading.Thread(target=lambda: [lines.put(line) for line in process.stdout or ()], daemon=True),
        threading.Thread(target=lambda: [log.append(line) for line in process.stderr or ()], daemon=True),
    ]
    for reader in readers:
        reader.start()
    try:
        said = [lines.get(timeout=PATIENCE_SECONDS)]
        while not said[-1].startswith(LISTENING):
            said.append(lines.get(timeout=PATIENCE_SECONDS))
        yield ServerProcess(process, said[-1].removeprefix(LISTENING).strip(), said, log)
    finally:
        if process.poll() is None:
            os.kill(process.pid, signal.SIGKILL)
        process.wait(PATIENCE_SECONDS)
        for reader in readers:
            reader.join(PATIENCE_SECONDS)
        process.stdout.close()
        process.stderr.close()
