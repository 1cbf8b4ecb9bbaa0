import hashlib
import json
from pathlib import Path

import pytest

from flash41.checkpoint.embedded import tiny_config
from flash41.checkpoint.schema import schema
from flash41.cli.main import run
from flash41.errors import CheckpointError, ConfigError
from flash41.tools.doctor import examine
from helpers.checkpoints import TINY
from helpers.command_line import invoke
from helpers.config_documents import DATA


def digests(directory: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(directory.iterdir())}


def test_a_small_one_of_its_own_is_made_unless_told_otherwise(tmp_path: Path, tiny_directory: Path) -> None:
    result = invoke("make-tiny", tmp_path / "out")
    assert result.exit_code == 0, result.exception
    assert result.output == f"{tmp_path / 'out'}: {len(schema(tiny_config()))} tensors, seed 41\n"
    assert examine(tmp_path / "out").faults == ()
    found, expected = digests(tmp_path / "out"), digests(tiny_directory)
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        assert found[name] == expected[name]


def test_a_config_and_its_tokenizer_can_be_named(tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = ("make-tiny", out, "--config", TINY / "config.json", "--tokenizer", TINY / "tokenizer.json")
    result = invoke(*command, "--seed", "3")
    assert result.exit_code == 0, result.exception
    assert result.output == f"{out}: 1568 tensors, seed 3\n"
    assert json.loads((out / "config.json").read_text())["text_config"]["vocab_size"] == 512
    assert invoke("doctor", out).exit_code == 0


@pytest.mark.parametrize("config", [TINY, TINY / "config.json"], ids=["folder", "file"])
def test_a_tokenizer_beside_the_config_is_taken_where_none_is_named(config: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert invoke("make-tiny", out, "--config", config).exit_code == 0
    assert (out / "tokenizer.json").read_bytes() == (TINY / "tokenizer.json").read_bytes()
    assert invoke("doctor", out).exit_code == 0


def test_what_was_made_can_be_asked(tmp_path: Path) -> None:
    assert invoke("make-tiny", tmp_path / "out", "--seed", "3").exit_code == 0
    result = invoke("generate", "hi", "--model", tmp_path / "out", "--max-tokens", "2", "--json")
    assert len(json.loads(result.stdout)["output_ids"]) in (1, 2)


def test_a_seed_repeats_a_checkpoint(tmp_path: Path) -> None:
    for name, seed in (("a", "3"), ("b", "3"), ("c", "4")):
        assert invoke("make-tiny", tmp_path / name, "--seed", seed).exit_code == 0
    first, again, other = (digests(tmp_path / name) for name in ("a", "b", "c"))
    assert first == again
    assert first != other


def test_a_target_is_replaced_only_by_force(tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert invoke("make-tiny", out, "--seed", "1").exit_code == 0
    before = digests(out)
    refused = invoke("make-tiny", out, "--seed", "2")
    assert isinstance(refused.exception, CheckpointError)
    assert "expected a name that does not exist yet" in str(refused.exception)
    assert digests(out) == before
    assert invoke("make-tiny", out, "--seed", "2", "--force").exit_code == 0
    assert digests(out) != before


def test_even_force_replaces_nothing_but_a_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("keep me")
    refused = invoke("make-tiny", tmp_path, "--force")
    assert isinstance(refused.exception, CheckpointError)
    assert "a checkpoint or an empty folder" in str(refused.exception)
    assert (tmp_path / "thesis.txt").read_text() == "keep me"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--config", str(DATA / "tiny-a.json")), "vocab_size: got 512, expected 1024"),
        (("--config", "no/where.json"), "no/where.json: expected a file"),
        (("--tokenizer", str(TINY / "tokenizer.json")), "classes from the tokenizer"),
    ],
    ids=["vocabulary", "no file", "classes"],
)
def test_what_a_user_can_cause_is_an_error_before_anything_is_made(
    arguments: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    refused = invoke("make-tiny", tmp_path / "out", *arguments)
    assert isinstance(refused.exception, ConfigError)
    assert message in str(refused.exception)
    assert list(tmp_path.iterdir()) == []


def test_such_an_error_is_printed_without_a_traceback_and_ends_with_status_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["make-tiny", str(tmp_path / "out"), "--config", str(DATA / "tiny-a.json")]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert "Traceback" not in captured.err


def test_wrong_usage_ends_with_status_2() -> None:
    assert invoke("make-tiny").exit_code == 2
    assert invoke("make-tiny", "out", "--seed", "x").exit_code == 2
