"""`python -m flash41` is the program itself."""

import subprocess
import sys

from flash41.version import __version__
from helpers.command_line import environment


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", "-m", "flash41", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment(), timeout=120)


def test_it_answers_like_the_program() -> None:
    found = run("--version")
    assert (found.returncode, found.stdout, found.stderr) == (0, f"flash41 {__version__}\n", "")


def test_it_exits_with_the_status_of_its_command() -> None:
    found = run("inspect", "no/where")
    assert found.returncode == 1
    assert found.stderr.startswith("error: no/where: expected a file")
