"""The options of an engine: the same in every command, and the keywords of the library."""

import inspect
import re
from dataclasses import fields
from typing import Any

import pytest
import typer

from flash41.cli.engine_options import EngineOptions, takes_engine
from flash41.cli.main import run
from flash41.engine.llm import LLM
from helpers.command_line import invoke

OPTION = re.compile(r"^  (--[a-z-]+)", re.MULTILINE)
NAMES = [f"--{field.name.replace('_', '-')}" for field in fields(EngineOptions)]
LEFT_OUT = {
    "generate": {"--max-num-seqs"},
    "chat": {"--max-num-seqs"},
    "serve": set[str](),
    "batch": set[str](),
    "canary": set[str](),
    "bench": {"--max-model-len", "--max-num-seqs", "--memory"},
}


def test_they_are_the_keywords_of_the_library_with_its_defaults() -> None:
    library = inspect.signature(LLM.__init__).parameters
    keywords = EngineOptions().keywords()
    assert set(keywords) == {name for name, one in library.items() if one.kind is inspect.Parameter.KEYWORD_ONLY}
    assert {name: library[name].default for name in keywords} == keywords


@pytest.mark.parametrize("command", LEFT_OUT)
def test_every_command_that_answers_has_them_in_one_order(command: str) -> None:
    shown = [name for name in OPTION.findall(invoke(command, "--help").output) if name in NAMES]
    assert shown == [name for name in NAMES if name not in LEFT_OUT[command]]


def test_what_a_command_decides_replaces_an_option() -> None:
    given = EngineOptions(memory="2K", draft="on", draft_accept="rejection", profile="atom", prefix_replay=True)
    changed = given.keywords(max_num_seqs=3)
    assert (changed["memory_bytes"], changed["max_num_seqs"], given.max_num_seqs) == (2048, 3, 8)
    assert given.approximate == ["prefix-replay"]
    assert given.numbers == ("atom", None, None, "prefix-replay", "rejection")
    # Drafts that keep a text as it is are nothing that an answer depends on.
    assert EngineOptions(draft="on", draft_accept="shared-noise").numbers == EngineOptions().numbers
    with pytest.raises(typer.BadParameter, match="expected bytes above 0"):
        EngineOptions(memory="0")


def test_a_command_gets_its_own_parameters_and_one_record() -> None:
    seen: dict[str, Any] = {}

    @takes_engine(only=("profile", "memory"))
    def command(first: int, second: str = "b", *, engine: EngineOptions) -> None:
        """Does nothing."""
        seen.update(first=first, second=second, engine=engine)

    assert list(inspect.signature(command).parameters) == ["first", "second", "profile", "memory"]
    assert (command.__name__, command.__doc__) == ("command", "Does nothing.")
    command(first=1, second="c", profile="fp32", memory=None)
    assert seen == {"first": 1, "second": "c", "engine": EngineOptions(profile="fp32")}
    with pytest.raises(AssertionError, match="no options"):
        takes_engine("seed")


@pytest.mark.parametrize("command", [("generate", "hi"), ("chat",), ("serve", "--port", "0"), ("bench", "latency")])
def test_an_acceptance_rule_without_drafts_is_refused(
    command: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*command, "--draft-accept", "shared-noise"]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    wanted = (
        "draft: got 'off', expected 'on' or 'adaptive' with draft_accept 'shared-noise' (it says which drafts stay)"
    )
    assert captured.err == f"error: {wanted}\n"
