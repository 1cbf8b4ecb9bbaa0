import os
import resource
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from flash41.checkpoint.directory import open_directory
from flash41.checkpoint.faults import FaultyCheckpointError
from flash41.checkpoint.loader import open_checkpoint
from flash41.checkpoint.sparse import write_sparse
from flash41.checkpoint.stored import Scope
from flash41.errors import CheckpointError, ConfigError
from helpers.config_documents import release_config, tiny_config


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    directory = tmp_path_factory.mktemp("sparse") / "release"
    write_sparse(directory, release_config())
    yield directory
    for path in directory.iterdir():
        path.unlink()


def test_the_release_occupies_megabytes_and_claims_half_a_terabyte(release: Path) -> None:
    shards = sorted(release.glob("*.safetensors"))
    assert len(shards) == 48
    assert sum(path.stat().st_size for path in shards) > 510_286_023_000
    assert sum(path.stat().st_blocks * 512 for path in shards) < 64 * 2**20
    assert not (release / "tokenizer.json").exists()


def test_the_release_opens_and_its_last_table_row_can_be_read(release: Path) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.monotonic()
    checkpoint = open_checkpoint(release)
    # Bounds five times what is wanted (3 s, 1 GiB): they catch a change of kind, not a busy machine.
    assert time.monotonic() - start < 15
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 5 * 2**20
    codes, scales = checkpoint.engram_table(14)
    assert codes.shape == (384_016_682, 256)
    assert codes[-1].sum() == 0
    assert scales[-1].tolist() == [0] * 8
    assert checkpoint.quantized("layers.39.ffn.experts.383.w2").shape == (5120, 2304)
    with pytest.raises(FaultyCheckpointError, match="experts: unfilled"):
        checkpoint.assert_all_bound(Scope.BACKBONE)


def test_a_nan_scale_deep_inside_the_release_is_found(release: Path) -> None:
    files = open_directory(release)
    name = "mtp.2.ffn.experts.127.w2.scale"
    header = files.shards[files.shard_of[name]]
    position = header.data_start + header.tensors[name].begin + 73
    overwrite(header.path, position, 255)
    checkpoint = open_checkpoint(release)
    with pytest.raises(FaultyCheckpointError, match=r"scale byte 255 \(NaN\) at \[1, 1\]"):
        checkpoint.quantized(name.removesuffix(".scale"))
    overwrite(header.path, position, 0)


def overwrite(path: Path, position: int, value: int) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(bytes([value]))


def test_a_small_model_can_be_sparse_too(tmp_path: Path) -> None:
    write_sparse(tmp_path / "out", tiny_config(), num_shards=5)
    checkpoint = open_checkpoint(tmp_path / "out")
    assert checkpoint.tensor("embed.weight").count_nonzero() == 0
    with pytest.raises(CheckpointError, match="does not exist yet"):
        write_sparse(tmp_path / "out", tiny_config(), num_shards=5)
    write_sparse(tmp_path / "out", tiny_config(), num_shards=1, force=True)
    with pytest.raises(ConfigError, match="number of shards"):
        write_sparse(tmp_path / "other", tiny_config(), num_shards=2)


def test_without_a_number_small_models_get_one_shard_and_one_per_engram_layer(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    write_sparse(tmp_path / "out", tiny_config(), progress=lambda done, count: seen.append((done, count)))
    assert len(list((tmp_path / "out").glob("*.safetensors"))) == 3
    assert seen == [(1, 3), (2, 3), (3, 3)]


def test_a_file_system_that_fills_holes_is_refused_and_left_clean(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def filled(path: Path, **_: object) -> os.stat_result:
        return os.stat_result([*os.lstat(path)[:6], 64 * 2**20, 0, 0, 0], {"st_blocks": 64 * 2**20 // 512})

    monkeypatch.setattr("flash41.checkpoint.sparse.Path.stat", filled)
    with pytest.raises(CheckpointError, match="this file system fills holes"):
        write_sparse(tmp_path / "out", tiny_config(), num_shards=5)
    monkeypatch.undo()
    assert list(tmp_path.iterdir()) == []


def test_a_file_system_without_such_sizes_is_a_clear_error(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**30, hard))
    try:
        with pytest.raises(CheckpointError, match="File too large"):
            write_sparse(tmp_path / "out", release_config())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(tmp_path.iterdir()) == []
