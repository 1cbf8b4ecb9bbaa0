"""The canary as a program, on the golden checkpoint: another model than the one the questions were made for."""

import json

from helpers.checkpoints import TINY
from helpers.command_line import program
from helpers.zygote import forked_python

FEW = ("--family", "copying", "--samples", "2", "--threads", "1", "--backend", "reference")


def test_any_checkpoint_is_asked_through_its_own_tokenizer() -> None:
    done = program(["canary", TINY, *FEW, "--json", "--draft", "on"], python=forked_python())
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert found["asked"] == {"copying": 2}
    assert found["scores"] == {"copying": 0.0}
    assert found["model"] == str(TINY)


def test_wrong_names_are_refused_with_the_right_ones() -> None:
    done = program(["canary", TINY, "--without", "gravity"], python=forked_python())
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: mechanism: got 'gravity', expected one of engram, window, compressed")
    assert len(done.stderr.splitlines()) == 1
