"""Running `flash41` in tests: in this process, or as a program of its own."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import typer.testing

from flash41.cli.main import build_app

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = "from flash41.cli.main import main; main()"


def invoke(*arguments: str | Path) -> typer.testing.Result:
    """One command in this process; what it raises lies in `exception`."""
    return typer.testing.CliRunner().invoke(build_app(), [str(argument) for argument in arguments])


def environment() -> dict[str, str]:
    """This process's environment with the source tree to import from."""
    return {**os.environ, "PYTHONPATH": str(ROOT / "src")}


def program(
    arguments: Sequence[str | Path], code: str = PROGRAM, python: Sequence[str] = (sys.executable,)
) -> subprocess.CompletedProcess[str]:
    """`flash41 ARGUMENTS` as a process in which warnings are errors; `code` may wrap it, `python` run it."""
    strict = {**environment(), "PYTHONWARNINGS": "error"}
    command = [*python, "-c", code, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=strict, timeout=120)
