import json
from pathlib import Path

import pytest

from flash41.errors import RequestError
from helpers.command_line import invoke, program
from helpers.zygote import forked_python

CALLS = [
    {"prompt": "Once", "max_tokens": 2, "seed": 1},
    {"prompt": "Once", "n": 2},
    {"prompt": [5, 6], "max_tokens": 2, "seed": 1},
]

pytestmark = pytest.mark.usefixtures("tiny_as_default")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "in.jsonl"
    lines = [
        {"custom_id": f"call {number}", "method": "POST", "url": "/v1/completions", "body": body}
        for number, body in enumerate(CALLS)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_a_batch_is_answered_and_summed_up(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.jsonl"
    result = invoke("batch", source, target, "--max-model-len", "64")
    assert result.exit_code == 0, (result.output, result.exception)
    assert (result.stdout, result.stderr) == (f"{target}: 2 ok, 1 failed\n", "")
    found = {line["custom_id"]: line for line in map(json.loads, target.read_text().splitlines())}
    assert [found[f"call {number}"]["error"] is None for number in range(3)] == [True, False, True]
    assert all(list(line) == ["id", "custom_id", "response", "error"] for line in found.values())
    again = invoke("batch", source, target)
    assert again.stdout == f"{target}: 2 ok, 1 failed (3 of them were there already)\n"


def test_results_under_other_options_are_another_batch(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.jsonl"
    assert invoke("batch", source, target, "--max-model-len", "64").exit_code == 0
    before = target.read_text()
    refused = invoke("batch", source, target, "--profile", "fp32")
    assert isinstance(refused.exception, RequestError)
    assert "use force" in str(refused.exception)
    assert target.read_text() == before
    assert invoke("batch", source, target, "--profile", "fp32", "--max-model-len", "64", "--force").exit_code == 0
    assert target.read_text() != before


def test_a_file_that_is_refused_is_one_line_and_no_model_is_opened(source: Path, tmp_path: Path) -> None:
    notes = tmp_path / "notes.txt"
    notes.write_text("mine\n")
    found = program(["batch", source, notes, "--model", tmp_path / "nowhere"], python=forked_python())
    assert (found.returncode, found.stdout) == (1, "")
    assert found.stderr.startswith("error: output file: got")
    assert found.stderr.count("\n") == 1
    assert notes.read_text() == "mine\n"


def test_a_batch_whose_calls_begin_alike_says_what_was_there_already(tmp_path: Path) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    bodies = [{"prompt": list(range(3, 40)), "max_tokens": 1, "seed": number} for number in range(2)]
    lines = [
        {"custom_id": f"call {number}", "method": "POST", "url": "/v1/completions", "body": body}
        for number, body in enumerate(bodies)
    ]
    source.write_text("".join(json.dumps(line) + "\n" for line in lines))
    options = ("--max-model-len", "64", "--block-size", "16", "--max-num-seqs", "1")
    result = invoke("batch", source, target, *options)
    told = "prefix cache: 32 of 74 tokens were there already"
    assert result.stdout.splitlines() == [f"{target}: 2 ok, 0 failed", told]
    without = invoke("batch", source, tmp_path / "other.jsonl", *options, "--no-prefix-cache")
    assert without.stdout.splitlines() == [f"{tmp_path / 'other.jsonl'}: 2 ok, 0 failed"]


def test_approximate_results_are_labelled_and_belong_to_a_batch_of_their_own(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.jsonl"
    result = invoke("batch", source, target, "--max-model-len", "64", "--decoder-replay")
    assert result.stdout.splitlines() == [f"{target}: 2 ok, 1 failed", "approximate: decoder-replay"]
    exact = invoke("batch", source, target, "--max-model-len", "64")
    assert isinstance(exact.exception, RequestError)
