import hashlib
import shutil
from pathlib import Path

import numpy as np
import pytest

from flash41.checkpoint import streaming
from flash41.checkpoint.loader import open_checkpoint
from flash41.checkpoint.schema import schema
from flash41.checkpoint.stored import StoredDtype
from flash41.checkpoint.streaming import random_chunks, write_random
from flash41.config.slices import SliceWish, sliced
from flash41.errors import CapacityError, CheckpointError
from helpers.config_documents import release_config, tiny_config

SPECS = schema(sliced(release_config(), SliceWish(layers=2, experts=6, engram_rows=4800)))


def first_bytes(name: str, seed: int = 1) -> np.ndarray:
    return next(random_chunks(SPECS[name], seed))


def written(folder: Path, seed: int = 1) -> dict[str, str]:
    write_random(folder, tiny_config(), seed, tokenizer_files={"tokenizer.json": b"{}"})
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


def test_a_written_checkpoint_opens_without_a_fault_and_has_no_nan_scale(tmp_path: Path) -> None:
    written(tmp_path / "made")
    checkpoint = open_checkpoint(tmp_path / "made")
    assert list(checkpoint.nan_scales()) == []


def test_a_seed_is_the_same_bytes_again_and_another_seed_others(tmp_path: Path) -> None:
    first, again, other = written(tmp_path / "a"), written(tmp_path / "b"), written(tmp_path / "c", seed=2)
    assert first == again
    assert first.keys() == other.keys()
    assert first != other


def test_chunks_do_not_show_in_the_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = SPECS["layers.0.ffn.gate.weight"]
    whole = np.concatenate(list(random_chunks(spec, 3)))
    monkeypatch.setattr(streaming, "CHUNK_BYTES", 4096)
    parts = list(random_chunks(spec, 3))
    assert len(parts) == spec.num_bytes // 4096
    assert np.array_equal(np.concatenate(parts), whole)


def test_codes_are_numbers_of_the_stated_deviation() -> None:
    codes = first_bytes("layers.0.attn.wq_a.weight")
    exponent, mantissa = (codes >> 3 & 15).astype(int), (codes & 7) / 8
    values = np.where(codes >> 7, -1, 1) * 2.0 ** (exponent - 7) * (1 + mantissa)
    assert set(exponent) == {5, 6, 7, 8}
    assert values.std() == pytest.approx(streaming.E4M3_DEVIATION, rel=0.01)


@pytest.mark.parametrize(
    ("prefix", "deviation"),
    [("layers.0.attn.wq_a", 1.689), ("layers.1.ffn.experts.3.w2", 2.926), ("layers.1.engram.embed", 1.689)],
)
def test_a_scale_brings_the_values_near_their_deviation(prefix: str, deviation: float) -> None:
    spec = SPECS[f"{prefix}.scale"]
    scales = np.concatenate(list(random_chunks(spec, 1)))
    wanted = 1.0 if "engram" in prefix else 1 / np.sqrt(spec.shape[1] * 32)
    assert len(set(scales.tolist())) == 2
    assert 0.35 < deviation * 2.0 ** (scales.astype(float).mean() - 127) / wanted < 1.42


@pytest.mark.parametrize(("name", "wanted"), [("embed.weight", 1.0), ("head.weight", 3 / np.sqrt(5120))])
def test_large_plain_weights_are_near_their_deviation(name: str, wanted: float) -> None:
    assert SPECS[name].dtype is StoredDtype.BF16
    words = first_bytes(name).view("<u2").astype("<u4") << 16
    values = words.view("<f4").astype(float)
    assert abs(values.mean()) < 0.01 * wanted
    assert 0.7 < values.std() / wanted < 1.42


def test_progress_ends_at_all_bytes(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    write_random(
        tmp_path / "made", tiny_config(), 1, tokenizer_files={}, progress=lambda done, count: seen.append((done, count))
    )
    total = sum(spec.num_bytes for spec in schema(tiny_config()).values())
    assert seen[-1] == (total, total)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_a_disk_without_room_is_refused_and_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(CapacityError, match=r"free bytes at .*: got 1000, expected at least"):
        write_random(tmp_path / "deep" / "made", tiny_config(), 1, tokenizer_files={})
    assert list(tmp_path.iterdir()) == []


def test_an_existing_target_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "made").mkdir()
    with pytest.raises(CheckpointError, match="does not exist yet"):
        write_random(tmp_path / "made", tiny_config(), 1, tokenizer_files={})
    assert list((tmp_path / "made").iterdir()) == []
