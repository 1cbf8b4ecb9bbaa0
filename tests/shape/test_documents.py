"""What the documents promise: their commands run, their links lead somewhere.

In README.md and docs, a line of an ``sh`` block that begins with ``flash41``, ``python`` or ``echo`` is run, and a
``python`` block is run whole; the blocks of one document share a directory, from top to bottom, in which `benchmarks`
and `scripts` are those of the repository.  A ``text`` block is output.

The first line of each kind in `REAL` (`flash41 serve`, `python -c`) starts processes of its own, the others fork the
zygote (`helpers/zygote.py`), which saves the imports of each.
"""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from helpers.command_line import PROGRAM, ROOT, environment
from helpers.zygote import forked_python

FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
CODE = re.compile(r"`([^`\n]+)`")
FILE_NAME = re.compile(r"[\w./-]+\.(?:py|md|json|toml|npz|txt)")
RUNNABLE = ("flash41 ", "python ", "echo ")
KIND = re.compile(r"\b(?:flash41|python) +(\S+)")

REAL = ("generate", "serve", "-c", "benchmarks/decode.py")
"""Kinds of which one runs as a process of its own; how each command starts is tested beside it, in tests/unit/cli."""

README = ROOT / "README.md"
TOUR = ROOT / "docs" / "tour.md"
EXPLAINING = [README, *sorted({TOUR, *(ROOT / "docs").rglob("*.md")})]
LINKING = [*EXPLAINING, ROOT / "AGENTS.md", ROOT / "CHANGELOG.md", ROOT / "training" / "README.md"]

each_of = pytest.mark.parametrize("document", EXPLAINING, ids=lambda path: str(path.relative_to(ROOT)))
each_linking = pytest.mark.parametrize("document", LINKING, ids=lambda path: str(path.relative_to(ROOT)))


@dataclass(frozen=True)
class Step:
    """Something a document says one can run."""

    command: list[str]
    text: str


def text_of(document: Path) -> str:
    return document.read_text(encoding="utf-8")


def steps(text: str) -> Iterator[Step]:
    for language, body in FENCE.findall(text):
        if language == "python":
            yield Step(["python", "-c", body], body)
        elif language == "sh":
            for line in body.replace("\\\n", " ").splitlines():
                if line.startswith(RUNNABLE):
                    yield Step(["bash", "-euo", "pipefail", "-c", line], line)


def kind(step: Step) -> str:
    """The sub-command or program of a line, or `-c`."""
    found = KIND.search(" ".join(step.command[:2]) if step.command[0] == "python" else step.text)
    return found[1] if found else "echo"


def first_steps() -> set[tuple[Path, int]]:
    """Places of the first step of each real kind: documents, and numbers of steps in them."""
    found: dict[str, tuple[Path, int]] = {}
    for document in EXPLAINING:
        for number, step in enumerate(steps(text_of(document))):
            if kind(step) in REAL:
                found.setdefault(kind(step), (document, number))
    return {*found.values()}


def shell(folder: Path, interpreter: list[str]) -> dict[str, str]:
    """An environment in which `flash41` and `python` are those under test, run by an interpreter."""
    folder.mkdir()
    for name, arguments in {"flash41": ["-c", PROGRAM], "python": []}.items():
        path = folder / name
        path.write_text(f'#!/bin/sh\nexec {shlex.join([*interpreter, *arguments])} "$@"\n')
        path.chmod(0o755)
    return {**environment(), "PATH": f"{folder}:{os.environ['PATH']}"}


@pytest.fixture(scope="module")
def shells(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, dict[str, str]]:
    """Environments, by whether each line starts processes of its own."""
    folder = tmp_path_factory.mktemp("shells")
    interpreters = {True: [sys.executable], False: forked_python()}
    return {fresh: shell(folder / str(fresh), interpreter) for fresh, interpreter in interpreters.items()}


@each_of
def test_every_command_of_a_document_runs(document: Path, shells: dict[bool, dict[str, str]], tmp_path: Path) -> None:
    for folder in ("benchmarks", "scripts"):
        (tmp_path / folder).symlink_to(ROOT / folder)  # programs of the repository, named as from its root
    firsts = first_steps()
    for number, step in enumerate(steps(text_of(document))):
        env = shells[(document, number) in firsts]
        found = subprocess.run(
            step.command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False, timeout=240
        )
        assert found.returncode == 0, f"{step.text}\n{found.stdout[-2000:]}\n{found.stderr[-2000:]}"


@each_of
def test_every_block_of_a_document_says_whether_it_runs(document: Path) -> None:
    languages = {language for language, _ in FENCE.findall(text_of(document))}
    assert languages <= {"sh", "python", "text", "json", "toml"}, "a block without a language is neither run nor output"


@each_linking
def test_every_relative_link_leads_to_a_file(document: Path) -> None:
    targets = [link.partition("#")[0] for link in LINK.findall(text_of(document)) if "://" not in link]
    missing = [target for target in targets if target and not (document.parent / target).exists()]
    assert missing == []


def test_the_tour_names_only_files_that_exist() -> None:
    names = [name for code in CODE.findall(text_of(TOUR)) if FILE_NAME.fullmatch(name := code.strip())]
    assert names
    folders = ("src", "tests", "docs", "scripts")
    known = [f"/{path.relative_to(ROOT)}" for folder in folders for path in (ROOT / folder).rglob("*.*")]
    # A file may be named by the end of its path, as in `runner.py`.
    missing = [name for name in names if not any(path.endswith(f"/{name}") for path in known)]
    assert [name for name in missing if not (ROOT / name).is_file()] == []


def test_runnable_lines_are_found_and_others_are_not() -> None:
    text = "```sh\nflash41 a \\\n  b  # why\nscripts/check\n```\n```text\nflash41 c\n```\n```python\nprint(1)\n```\n"
    assert [step.text for step in steps(text)] == ["flash41 a    b  # why", "print(1)\n"]


def test_the_first_step_of_each_real_kind_is_marked() -> None:
    firsts = first_steps()
    kinds = [kind(step) for document in EXPLAINING for step in steps(text_of(document))]
    assert {*REAL} <= {*kinds}
    assert len(firsts) == len(REAL) < len(kinds)
    assert {"trace", "serve", "-c", "benchmarks/decode.py", "echo"} <= {*kinds}
