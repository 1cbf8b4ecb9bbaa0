"""Commands without the seconds that an interpreter takes to import torch.

    subprocess.run([*forked_python(), "-c", code, *arguments], ...)     instead of [sys.executable, "-c", code, ...]

The zygote (`zygote_process.py`) is started with the first of them and lives as long as this process.
"""

import atexit
import functools
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

from helpers.command_line import ROOT, environment

TESTS = ROOT / "tests"
CLIENT = TESTS / "helpers" / "zygote_client.py"
PATIENCE_SECONDS = 60


def forked_python() -> list[str]:
    """What stands for `[sys.executable]` at the beginning of a command; an option of the interpreter has no effect."""
    return [sys.executable, "-I", "-S", str(CLIENT), str(_zygote() / "socket")]


@functools.cache
def _zygote() -> Path:
    """The folder of this process's zygote."""
    folder = Path(tempfile.mkdtemp(prefix="zygote-"))
    ours_reads, ours = os.pipe()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "socket"))
        listener.listen()
        code = (
            f"import sys; sys.path[0] = {str(TESTS)!r}; from helpers.zygote_process import main; "
            f"main({listener.fileno()}, {ours_reads})"
        )
        process = subprocess.Popen(
            [sys.executable, "-c", code],
            pass_fds=(listener.fileno(), ours_reads),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            # OpenBLAS begins its threads when it is imported, and a fork would lose them.
            env={**environment(), "PYTHONWARNINGS": "error", "OPENBLAS_NUM_THREADS": "1"},
            start_new_session=True,  # Ctrl-C ends it through its pipe
        )
    os.close(ours_reads)

    def end() -> None:
        os.close(ours)
        process.wait(PATIENCE_SECONDS)
        shutil.rmtree(folder)

    atexit.register(end)
    return folder
