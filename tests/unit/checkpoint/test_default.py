import os
import shutil
import zipfile
from pathlib import Path

import pytest

from flash41.checkpoint import default as module
from flash41.checkpoint.default import default_checkpoint
from flash41.checkpoint.directory import INDEX_FILE
from flash41.checkpoint.faults import FaultKind, FaultyCheckpointError
from flash41.errors import CheckpointError
from flash41.tools.doctor import examine
from helpers.command_line import ROOT

MOST_BYTES = 12_000_000
TRAINING = ROOT / "training"
SECOND = "model-00002-of-00003.safetensors"


@pytest.fixture
def package(default_directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The default of a package that lies in a folder of its own."""
    directory = tmp_path / "data" / "default"
    shutil.copytree(default_directory, directory)
    monkeypatch.setattr(module, "files", lambda _: tmp_path)
    return directory


def test_it_is_opened_where_the_package_lies(default_directory: Path) -> None:
    assert default_directory == Path(module.__file__).parent / "data" / "default"


def test_nothing_is_written(package: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for path in (package, *package.iterdir()):
        path.chmod(path.stat().st_mode & 0o555)
    before = {path.name: path.stat().st_mtime_ns for path in package.iterdir()}
    try:
        assert default_checkpoint() == package
        assert {path.name: path.stat().st_mtime_ns for path in package.iterdir()} == before
        assert not (tmp_path / "cache").exists()
    finally:
        package.chmod(0o755)


@pytest.mark.parametrize(
    ("lost", "message"),
    [
        ([SECOND], f"shards: missing [{SECOND}]"),
        (["tokenizer.json"], "tokenizer: missing [tokenizer.json]"),
        ([INDEX_FILE], f"expected model.safetensors alone or {INDEX_FILE} with the files it lists"),
        (["config.json", "tokenizer_config.json"], "config.json: got no such file"),
    ],
)
def test_what_is_missing_is_told_at_once_with_a_remedy(lost: list[str], message: str, package: Path) -> None:
    for name in lost:
        (package / name).unlink()
    with pytest.raises(FaultyCheckpointError) as caught:
        default_checkpoint()
    told = str(caught.value)
    assert told.startswith(f"embedded default: got '{package}', expected the files of the package (install flash41")
    assert message in told
    assert len(caught.value.faults) == len(lost)


def test_a_shard_that_was_cut_is_told(package: Path) -> None:
    os.truncate(package / SECOND, 100)
    with pytest.raises(FaultyCheckpointError, match=SECOND) as caught:
        default_checkpoint()
    assert {fault.kind for fault in caught.value.faults} <= {FaultKind.HEADER, FaultKind.INDEX, FaultKind.SHARD}


def test_a_package_in_an_archive_has_none_and_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = tmp_path / "flash41.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("data/default/config.json", "{}")
    monkeypatch.setattr(module, "files", lambda _: zipfile.Path(archive))
    with pytest.raises(CheckpointError, match=r"expected a folder \(weights are mapped from files: unpack it"):
        default_checkpoint()


def test_the_doctor_finds_no_fault(default_directory: Path) -> None:
    report = examine(default_directory)
    assert report.faults == ()
    assert len(report.shards) == 3
    assert report.token_map.value == "checked"


def test_it_is_the_model_that_training_makes(default_directory: Path) -> None:
    made = {path.name: path for path in (TRAINING / "config.json", *(TRAINING / "vocabulary").iterdir())}
    assert set(made) == {"config.json", *module.TOKENIZER_FILES}
    for name, path in made.items():
        assert (default_directory / name).read_bytes() == path.read_bytes(), name


def test_it_is_small_and_nothing_lies_beside_it(default_directory: Path) -> None:
    shards = [f"model-0000{number}-of-00003.safetensors" for number in (1, 2, 3)]
    known = {"card.json", "config.json", INDEX_FILE, *shards, *module.TOKENIZER_FILES}
    assert {path.name for path in default_directory.iterdir()} == known
    assert sum(path.stat().st_size for path in default_directory.iterdir()) < MOST_BYTES
