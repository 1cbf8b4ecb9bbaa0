import hashlib
import json
import logging
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from flash41.checkpoint import default as module
from flash41.checkpoint.default import (
    VERSION,
    VERSION_FILE,
    default_checkpoint,
    tiny_config,
    tiny_tokenizer_files,
    write_default,
)
from flash41.checkpoint.headers import read_header
from flash41.checkpoint.schema import schema
from flash41.engram.vocabulary import TokenMap
from flash41.errors import CheckpointError
from flash41.tools.doctor import examine

SHA256 = ("2", "85b61569b0f8407a1acac01d27e7e4a03e3694f732816d7336d909f85b8db0fb")
"""Version and digest of all files.  Other bytes need another VERSION: compute both anew, together."""


def digest(directory: Path) -> str:
    """SHA-256 over the names and bytes of all files."""
    total = hashlib.sha256()
    for path in sorted(directory.iterdir()):
        total.update(f"{path.name}\0{path.stat().st_size}\0".encode())
        total.update(path.read_bytes())
    return total.hexdigest()


def times(directory: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in directory.iterdir()}


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache directory, and an empty folder for temporary files beside it."""
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_its_bytes_are_the_same_everywhere(default_directory: Path) -> None:
    assert (VERSION, digest(default_directory)) == SHA256


def test_it_is_made_at_first_use_in_the_cache_directory(cache: Path, default_directory: Path) -> None:
    directory = default_checkpoint()
    assert directory == cache / "flash41" / "default"
    assert digest(directory) == digest(default_directory)
    assert sorted(path.name for path in cache.rglob("*") if path.is_dir()) == ["default", "flash41"]


def test_progress_names_every_tensor_once(cache: Path) -> None:
    names: list[str] = []
    default_checkpoint(names.append)
    assert sorted(names) == sorted(schema(tiny_config()))


def test_the_second_use_makes_nothing(cache: Path) -> None:
    directory = default_checkpoint()
    before = times(directory)
    assert default_checkpoint(pytest.fail) == directory
    assert times(directory) == before


def test_it_is_used_where_nothing_can_be_written(
    cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    directory = default_checkpoint()

    def refuse(*_: object, **__: object) -> None:
        raise OSError(30, "Read-only file system")

    for function in ("pathlib.Path.mkdir", "fcntl.flock", "flash41.checkpoint.default.write_default"):
        monkeypatch.setattr(function, refuse)
    assert default_checkpoint() == directory
    assert caplog.records == []


@pytest.mark.parametrize("content", ["0\n", "10\n"])
def test_another_version_is_made_anew(content: str, cache: Path, default_directory: Path) -> None:
    directory = default_checkpoint()
    (directory / VERSION_FILE).write_text(content)
    (directory / "leftover").write_text("of the other version")
    assert default_checkpoint() == directory
    assert digest(directory) == digest(default_directory)


@pytest.mark.parametrize("name", ["model-00002-of-00003.safetensors", "tokenizer.json"])
def test_a_default_that_lost_a_file_is_made_anew(name: str, cache: Path, default_directory: Path) -> None:
    directory = default_checkpoint()
    (directory / name).unlink()
    assert digest(default_checkpoint()) == digest(default_directory)


def test_a_default_with_a_truncated_shard_is_made_anew(cache: Path, default_directory: Path) -> None:
    shard = default_checkpoint() / "model-00001-of-00003.safetensors"
    os.truncate(shard, 100)
    assert digest(default_checkpoint()) == digest(default_directory)


def test_a_default_that_was_deleted_in_part_without_its_version_is_made_anew(cache: Path) -> None:
    directory = default_checkpoint()
    (directory / VERSION_FILE).unlink()
    (directory / "tokenizer.json").unlink()
    assert examine(default_checkpoint()).faults == ()


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize("obstacle", ["file instead of the cache", "foreign folder", "full disk"])
def test_a_cache_that_refuses_it_is_one_warning_and_a_temporary_folder(
    obstacle: str,
    cache: Path,
    default_directory: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    if obstacle == "file instead of the cache":
        cache.write_text("")
    elif obstacle == "foreign folder":
        (cache / "flash41" / "default").mkdir(parents=True)
        (cache / "flash41" / "default" / "thesis.txt").write_text("keep me")
    else:

        def fail_in_cache(directory: Path, *arguments: object, **named: object) -> None:
            if cache in directory.parents:
                raise CheckpointError("No space left on device")
            write_default(directory, *arguments, **named)  # type: ignore[arg-type]

        monkeypatch.setattr(module, "write_default", fail_in_cache)
    directory = default_checkpoint()
    assert directory == cache.parent / "temporary" / f"flash41-{os.getuid()}" / "default"
    assert digest(directory) == digest(default_directory)
    assert directory.parent.stat().st_mode & 0o777 == 0o700
    (message,) = warnings(caplog)
    assert message.startswith(f"cache directory {cache / 'flash41'}: ")
    assert message.endswith(f"; the default checkpoint goes to {directory.parent}")
    before = times(directory)
    assert default_checkpoint() == directory
    assert times(directory) == before
    if obstacle == "foreign folder":
        assert (cache / "flash41" / "default" / "thesis.txt").read_text() == "keep me"


@pytest.mark.parametrize("obstacle", ["file", "link", "other owner"])
def test_a_temporary_folder_of_somebody_else_is_not_used(
    obstacle: str, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.write_text("")
    taken = tmp_path / "temporary" / f"flash41-{os.getuid()}"
    if obstacle == "file":
        taken.write_text("")
    elif obstacle == "link":
        (tmp_path / "elsewhere").mkdir()
        taken.symlink_to(tmp_path / "elsewhere")
    else:
        uid = os.getuid()
        taken = tmp_path / "temporary" / f"flash41-{uid + 1}"
        taken.mkdir()
        monkeypatch.setattr(os, "getuid", lambda: uid + 1)
    directory = default_checkpoint()
    assert directory.parent.parent == tmp_path / "temporary"
    assert directory.parent != taken
    assert examine(directory).faults == ()
    assert obstacle != "link" or not any((tmp_path / "elsewhere").iterdir())


def test_two_users_that_start_together_end_with_one_checkpoint_made_once(cache: Path, default_directory: Path) -> None:
    # Threads stand for processes: the lock belongs to an open file, and each of them opens its own.
    together, made = threading.Barrier(2), [list[str](), list[str]()]

    def use(names: list[str]) -> Path:
        together.wait()
        return default_checkpoint(names.append)

    with ThreadPoolExecutor(2) as pool:
        directories = set(pool.map(use, made))
    assert directories == {cache / "flash41" / "default"}
    assert sorted(map(len, made)) == [0, len(schema(tiny_config()))]
    assert digest(cache / "flash41" / "default") == digest(default_directory)


def test_the_doctor_finds_no_fault(default_directory: Path) -> None:
    report = examine(default_directory)
    assert report.faults == ()
    assert len(report.shards) == 3
    assert report.token_map.value == "checked"


def test_it_is_written_where_one_asks_but_over_nothing(tmp_path: Path, default_directory: Path) -> None:
    write_default(tmp_path / "mine")
    assert digest(tmp_path / "mine") == digest(default_directory)
    with pytest.raises(CheckpointError, match="expected a name that does not exist yet"):
        write_default(tmp_path / "mine")


def test_its_classes_are_those_of_the_shipped_tokenizer(tmp_path: Path) -> None:
    config = tiny_config()
    path = tmp_path / "tokenizer.json"
    path.write_bytes(tiny_tokenizer_files()["tokenizer.json"])
    assert TokenMap.from_tokenizer(path, config).num_classes == config.engram.compressed_vocab_size


def test_its_configuration_is_the_shipped_one(default_directory: Path) -> None:
    shipped = Path(module.__file__).parent / "data" / "tiny" / "config.json"
    assert json.loads((default_directory / "config.json").read_text()) == json.loads(shipped.read_text())


def test_it_is_small_and_quick_to_make(tmp_path: Path) -> None:
    started = time.perf_counter()
    write_default(tmp_path / "made")
    seconds = time.perf_counter() - started
    sizes = [read_header(path).identity.file_bytes for path in (tmp_path / "made").glob("*.safetensors")]
    assert sum(sizes) < 8 << 20
    assert seconds < 30  # wanted: one second; this catches a mistake, not a busy machine
