"""`flash41 serve` as a process of its own, which leads a group and has the engine's process as its child."""

import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from helpers.command_line import PROGRAM, environment

PATIENCE_SECONDS = 120
NOTE_AT_END = (
    "import atexit, sys; atexit.register(lambda: sys.stderr.write(f'tensors={\"torch\" in sys.modules}\\n')); "
)
"""The process says at its end whether it loaded tensors."""
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
    readers: list[threading.Thread] = field(default_factory=list)

    @property
    def engine_pid(self) -> int:
        """Number of the engine's process."""
        (child,) = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return int(child)

    def end(self, number: int = signal.SIGTERM) -> int:
        """Sends a signal to both processes, as a terminal does, and waits; the exit status."""
        os.killpg(self.process.pid, number)
        return self.process.wait(PATIENCE_SECONDS)

    def end_of_log(self) -> list[str]:
        """All lines of standard error, once both processes are gone."""
        self.readers[-1].join(PATIENCE_SECONDS)
        assert not self.readers[-1].is_alive(), "somebody still holds standard error"
        return self.log


def is_there(pid: int) -> bool:
    """Whether a process exists; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def is_gone(pid: int, patience_seconds: float) -> bool:
    """Whether a process ends in time."""
    deadline = time.monotonic() + patience_seconds
    while is_there(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not is_there(pid)


@contextlib.contextmanager
def serving(model: Path, *options: str) -> Iterator[ServerProcess]:
    """A server with a model on a free port; killed if it is still there at the end."""
    command = [sys.executable, "-c", NOTE_AT_END + PROGRAM, "serve", "--model", str(model), "--port", "0", *options]
    env = {**environment(), "PYTHONWARNINGS": "error", "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env, start_new_session=True
    )
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
        yield ServerProcess(process, said[-1].removeprefix(LISTENING).strip(), said, log, readers)
    finally:
        if process.poll() is None:
            os.kill(process.pid, signal.SIGKILL)
        process.wait(PATIENCE_SECONDS)
        for reader in readers:
            reader.join(PATIENCE_SECONDS)
        process.stdout.close()
        process.stderr.close()
