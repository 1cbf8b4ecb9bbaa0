"""The canary as a program, on the golden checkpoint: another model than the one the questions were made for."""

import json
import shutil
from pathlib import Path

import pytest

from helpers.checkpoints import TINY
from helpers.command_line import program

FEW = ("--family", "copying", "--samples", "2", "--threads", "1", "--backend", "reference")


def test_any_checkpoint_is_asked_through_its_own_tokenizer() -> None:
    done = program(["canary", TINY, *FEW, "--json", "--draft", "on"])
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert found["asked"] == {"copying": 2}
    assert found["scores"] == {"copying": 0.0}
    assert found["model"] == str(TINY)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (("--without", "gravity"), "error: mechanism: got 'gravity', expected one of engram, window, compressed"),
        (("--family", "sums"), "error: family: got 'sums', expected one of "),
        (("--profile", "exact"), "error: profile: got 'exact'"),
    ],
)
def test_wrong_names_are_refused_with_the_right_ones(wrong: tuple[str, ...], said: str) -> None:
    done = program(["canary", TINY, *wrong])
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(said)
    assert len(done.stderr.splitlines()) == 1


def test_a_directory_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    shutil.copytree(TINY, bare, ignore=shutil.ignore_patterns("tokenizer*"))
    done = program(["canary", bare, *FEW])
    assert (done.returncode, done.stdout) == (1, "")
    assert "tokenizer.json" in done.stderr
