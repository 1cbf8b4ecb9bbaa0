"""`--block-size` and `--memory` of `flash41 generate`, and what is logged about a plan."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from flash41.cli import generate as generate_module
from flash41.cli.main import run
from flash41.cli.options import num_bytes
from flash41.engine import llm as llm_module
from flash41.engine.llm import LLM
from helpers.command_line import invoke

pytestmark = pytest.mark.usefixtures("tiny_as_default")

SHORT = ("generate", "hi", "--max-tokens", "4", "--seed", "5", "--max-model-len", "64")


@pytest.mark.parametrize(
    ("text", "expected"),
    [("1", 1), ("65536", 65536), ("3K", 3072), ("64M", 64 * 2**20), ("2G", 2 * 2**30), ("1T", 2**40), ("007K", 7168)],
)
def test_bytes_are_plain_or_have_a_unit_of_1024(text: str, expected: int) -> None:
    assert num_bytes(text, "--memory") == expected


@given(count=st.integers(1, 10**15 - 1), unit=st.sampled_from(["", "K", "M", "G", "T"]))
def test_units_follow_each_other(count: int, unit: str) -> None:
    assert num_bytes(f"{count}{unit}", "--memory") == count * 1024 ** " KMGT".index(unit or " ")


@pytest.mark.parametrize(
    "text", ["", "M", "0", "0G", "-1M", "1.5G", "64MB", "64m", "64 M", "1e9", "\u0661M", "9" * 5000, "1M\n"]
)
def test_what_is_no_size_is_shown_with_what_a_size_may_be(text: str) -> None:
    with pytest.raises(typer.BadParameter) as caught:
        num_bytes(text, "--memory")
    assert str(caught.value) == f"got {text!r}, expected bytes above 0 such as 64M, 2G or 65536"
    assert caught.value.param_hint == "--memory"


def test_a_size_that_is_none_is_wrong_usage_and_nothing_is_opened(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*SHORT, "--model", "nowhere", "--memory", "lots"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "--memory" in captured.err
    assert "64M, 2G" in captured.err


class OpenedError(Exception):
    """Ends a command when it opens a model."""


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((), {"block_size": None, "memory_bytes": None}),
        (("--block-size", "16"), {"block_size": 16, "memory_bytes": None}),
        (("--memory", "1M"), {"block_size": None, "memory_bytes": 2**20}),
        ((), {"prefix_cache": True, "state_image_interval": 8192}),
        (("--no-prefix-cache",), {"prefix_cache": False}),
        (("--state-image-interval", "512"), {"state_image_interval": 512}),
        ((), {"decoder_replay": False, "prefix_replay": False}),
        ((), {"draft": "off", "draft_accept": None}),
        (("--draft", "adaptive", "--draft-accept", "rejection"), {"draft": "adaptive", "draft_accept": "rejection"}),
        ((), {"weights": "auto", "weights_memory_bytes": None}),
        (("--weights", "resident", "--weights-memory", "2G"), {"weights": "resident", "weights_memory_bytes": 2**31}),
        (("--decoder-replay", "--prefix-replay"), {"decoder_replay": True, "prefix_replay": True}),
    ],
)
def test_options_reach_the_model_as_numbers(
    arguments: tuple[str, ...], expected: dict[str, int | str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, Any] = {}

    def opened(model: object, **values: Any) -> None:
        seen.update(values)
        raise OpenedError

    monkeypatch.setattr(llm_module, "LLM", opened)
    result = invoke(*SHORT, *arguments)
    assert isinstance(result.exception, OpenedError)
    assert {name: seen[name] for name in expected} == expected


def test_pages_and_memory_change_no_answer_and_no_output() -> None:
    results = [
        invoke(*SHORT, *arguments)
        for arguments in ((), ("--block-size", "16"), ("--memory", "2M"), ("--block-size", "32", "--memory", "1M"))
    ]
    assert [result.exit_code for result in results] == [0] * 4
    assert len({result.output for result in results}) == 1
    found = json.loads(invoke(*SHORT, "--memory", "2M", "--json").stdout)
    assert len(found["output_ids"]) == 4


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (("--block-size", "7"), ("block_size: got 7", "even")),
        (("--block-size", "2"), ("block_size: got 2", "smallest legal block_size")),
        (("--block-size", "0"), ("block_size: got 0", "> 0")),
        (("--memory", "1K"), ("cache budget in bytes: got 1024", "at least", "1 STATE entries and one page")),
        (("--memory", "32K", "--block-size", "16"), ("max_model_len: got 64", "at most the", "budget of 32768 bytes")),
    ],
)
def test_what_does_not_fit_is_one_line_with_the_numbers(
    arguments: tuple[str, ...], parts: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*SHORT, *arguments]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert all(part in captured.err for part in parts), captured.err


def test_the_help_says_the_defaults() -> None:
    text = " ".join(invoke("generate", "--help").output.split())
    assert "[default: 256, or the next size that fits]" in text
    assert "[default: all requests at full length]" in text


def test_every_choice_of_a_plan_is_logged(tiny_directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="flash41.engine.llm")
    llm = LLM(tiny_directory, max_model_len=64, max_num_seqs=2)
    lines = [record.getMessage() for record in caplog.records if record.name == "flash41.engine.llm"]
    assert lines == [str(choice) for choice in llm.plan.choices]
    assert lines[0].startswith("slots 2: ")
    assert len(lines) == 8
    assert lines[7].startswith("bytes of weights in memory ")
    assert lines[3].startswith("images 12: ")


def test_the_command_shows_nothing_of_a_plan(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(generate_module.sys.stderr, "isatty", lambda: True)
    assert run([*SHORT, "--memory", "2M"]) == 0
    captured = capsys.readouterr()
    assert captured.err.startswith("[4 tokens, length")
    assert captured.err.count("\n") == 1


def test_what_is_approximate_says_so_wherever_it_shows(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = " ".join(invoke("generate", "--help").output.split())
    assert text.count("APPROXIMATE") == 2
    found = json.loads(invoke(*SHORT, "--decoder-replay", "--prefix-replay", "--json").stdout)
    assert found["approximate"] == ["decoder-replay", "prefix-replay"]
    assert "approximate" not in json.loads(invoke(*SHORT, "--json").stdout)
    monkeypatch.setattr(generate_module.sys.stderr, "isatty", lambda: True)
    assert run([*SHORT, "--decoder-replay"]) == 0
    assert capsys.readouterr().err.rstrip().endswith("seed 5, approximate: decoder-replay]")
