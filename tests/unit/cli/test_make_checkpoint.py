import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from flash41.errors import CheckpointError, ConfigError
from helpers.checkpoints import TINY
from helpers.command_line import invoke


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    directory = tmp_path_factory.mktemp("made") / "release"
    result = invoke("make-checkpoint", directory, "--like", "release", "--sparse")
    assert result.exit_code == 0, result.output
    yield directory, result.output
    for path in directory.iterdir():
        path.unlink()


def test_the_release_is_made_and_its_sizes_are_told(release: tuple[Path, str]) -> None:
    directory, output = release
    apparent = sum(path.stat().st_size for path in directory.iterdir())
    assert output.count("\n") == 1
    assert output.startswith(f"{directory}: 48 sparse shards, {apparent:,} bytes (475.26 GiB), of which ")
    real = float(output.split("of which ")[1].split(" MiB")[0])
    assert 0 < real < 64


def test_the_doctor_finds_nothing_wrong_with_it(release: tuple[Path, str]) -> None:
    result = invoke("doctor", release[0], "--json")
    assert result.exit_code == 0
    report = json.loads(result.output)
    assert report["payload_bytes"] == 510_286_023_000
    assert report["token_map"] == "not checked (no tokenizer.json)"


def test_inspect_takes_it_for_the_release(release: tuple[Path, str]) -> None:
    assert invoke("inspect", release[0]).output.splitlines()[0].endswith("DeepSeek-V4.1-Flash")


@pytest.mark.parametrize("like", [TINY, TINY / "config.json"])
def test_any_config_can_be_followed(tmp_path: Path, like: Path) -> None:
    result = invoke("make-checkpoint", tmp_path / "out", "--like", like, "--sparse")
    assert result.exit_code == 0, result.output
    assert ": 3 sparse shards, " in result.output
    assert invoke("doctor", tmp_path / "out").exit_code == 0


@pytest.mark.parametrize("options", [(), ("--sparse", "--slice", "layers=1,experts=6")])
def test_it_is_one_of_two_kinds_or_refused_with_the_alternatives(tmp_path: Path, options: tuple[str, ...]) -> None:
    result = invoke("make-checkpoint", tmp_path / "out", *options)
    assert result.exit_code == 2
    for part in ("--sparse", "--slice", "flash41 make-tiny"):
        assert part in result.output
    assert not (tmp_path / "out").exists()


def test_a_slice_is_made_and_told(tmp_path: Path) -> None:
    command = ("make-checkpoint", tmp_path / "out", "--like", TINY, "--slice", "layers=4,experts=5,engram=300")
    result = invoke(*command)
    assert result.exit_code == 0, result.output
    assert "4 layers (1 WINDOW, 1 FULL, 1 REUSE, 1 REINDEX), 5 experts each, " in result.output
    assert " n-gram rows, " in result.output
    assert invoke("doctor", tmp_path / "out").exit_code == 0
    assert isinstance(invoke(*command).exception, CheckpointError)
    assert invoke(*command, "--force", "--seed", "2").exit_code == 0


@pytest.mark.parametrize(
    ("parts", "complaint"),
    [
        ("layers=4", "experts missing"),
        ("layers=4,experts=5,layers=4", "got 'layers=4'"),
        ("layers=4;experts=5", "got 'layers=4;experts=5'"),
        ("layers=-1,experts=5", "got 'layers=-1'"),
        ("", "got ''"),
    ],
)
def test_a_slice_that_cannot_be_read_is_a_usage_error(tmp_path: Path, parts: str, complaint: str) -> None:
    result = invoke("make-checkpoint", tmp_path / "out", "--slice", parts)
    assert result.exit_code == 2
    assert complaint in result.output
    assert "layers=N,experts=M" in result.output


def test_a_slice_larger_than_its_model_is_refused_with_every_fault(tmp_path: Path) -> None:
    result = invoke("make-checkpoint", tmp_path / "out", "--slice", "layers=99,experts=2")
    assert isinstance(result.exception, ConfigError)
    assert "layers of a slice: got 99" in str(result.exception)
    assert "experts of a slice: got 2" in str(result.exception)
    assert not (tmp_path / "out").exists()


def test_a_target_is_replaced_only_by_force(tmp_path: Path) -> None:
    command = ("make-checkpoint", tmp_path / "out", "--like", TINY, "--sparse")
    assert invoke(*command).exit_code == 0
    refused = invoke(*command)
    assert isinstance(refused.exception, CheckpointError)
    assert "does not exist yet" in str(refused.exception)
    assert invoke(*command, "--force").exit_code == 0


def test_a_name_that_is_no_model_is_a_clear_error(tmp_path: Path) -> None:
    result = invoke("make-checkpoint", tmp_path / "out", "--like", "relaese", "--sparse")
    assert isinstance(result.exception, ConfigError)
    assert str(result.exception).startswith("relaese: expected a file")
