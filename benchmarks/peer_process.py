"""A peer's process as `peers.py` holds it: asked one turn at a time, stopped in between, named where it fails.

Every failure becomes a reason: what the peer raised, the last error it printed before it ended, or that it took too
long.
"""

import json
import os
import select
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

PROGRAM = Path(__file__).with_name("peer_turns.py")
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
REASON_CHARACTERS = 200


class PeerError(Exception):
    """A peer that is not measured, and why."""


class PeerProcess:
    """One peer with one checkpoint; between turns it is stopped and takes no CPU time from whoever is measured."""

    def __init__(self, python: Path, name: str, directory: Path, threads: int, patience: float) -> None:
        self.version: str | None = None
        self._patience = patience
        self._printed = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 - closed with the process
        self._process = subprocess.Popen(
            [python, PROGRAM, name, directory, str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._printed,
            text=True,
            env={**os.environ, **OFFLINE, **dict.fromkeys(THREAD_VARIABLES, str(threads))},
        )

    def load(self) -> None:
        """Waits for the checkpoint to be open; raises PeerError."""
        self._hear("loading")
        self._process.send_signal(signal.SIGSTOP)

    def answer(self, prompt: list[int], num_tokens: int) -> tuple[list[float], list[int]]:
        """Seconds and ids of the tokens behind a prompt; raises PeerError."""
        self._process.send_signal(signal.SIGCONT)
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"prompt": prompt, "num_tokens": num_tokens}) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise PeerError(self._last_words()) from None
        found = self._hear("a turn")
        self._process.send_signal(signal.SIGSTOP)
        if len(found["tokens"]) != num_tokens:
            raise PeerError(f"{len(found['tokens'])} of {num_tokens} tokens")
        return found["seconds"], found["tokens"]

    def close(self) -> None:
        self._process.kill()  # also ends a stopped process
        self._process.communicate()
        self._printed.close()

    def _hear(self, what: str) -> dict[str, Any]:
        assert self._process.stdout is not None
        deadline = time.monotonic() + self._patience
        ready, _, _ = select.select([self._process.stdout], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            raise PeerError(f"{what} took more than {self._patience:g} seconds")
        line = self._process.stdout.readline()
        if not line:
            raise PeerError(self._last_words())
        found: dict[str, Any] = json.loads(line)
        self.version = found.get("version", self.version)
        if "skipped" in found:
            raise PeerError(found["skipped"])
        return found

    def _last_words(self) -> str:
        """The last error that a process printed before it ended, else how it ended."""
        status = self._process.wait(self._patience)
        self._printed.seek(0)
        errors = [line.strip() for line in self._printed.read().splitlines() if "error" in line.lower()]
        return errors[-1][:REASON_CHARACTERS] if errors else f"ended with status {status}"
