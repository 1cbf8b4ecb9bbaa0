import os
import warnings
from pathlib import Path

import pytest
import torch

from flash41.checkpoint.directory import open_directory
from flash41.checkpoint.faults import FaultyCheckpointError
from flash41.checkpoint.reader import MappedShards
from helpers.checkpoints import read_raw, shard_bytes, tiny_copy


def opened(folder: Path, header: dict[str, object], data: bytes) -> MappedShards:
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(shard_bytes(header, data))
    return MappedShards(open_directory(folder))


def entry(dtype: str, shape: list[int], begin: int, end: int) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def test_every_stored_dtype_comes_back_bit_for_bit(tmp_path: Path) -> None:
    data = bytes([0, 0, 128, 63, 0, 64, 3, 7, 120, 255, 0, 200])
    header = {
        "f32": entry("F32", [1], 0, 4),
        "bf16": entry("BF16", [1], 4, 6),
        "fp4": entry("I8", [1, 2], 6, 8),
        "scale": entry("F8_E8M0", [2], 8, 10),
        "fp8": entry("F8_E4M3", [2, 1], 10, 12),
    }
    shards = opened(tmp_path, header, data)
    assert shards.tensor("f32").tolist() == [1.0]
    assert shards.tensor("bf16").tolist() == [2.0]
    # Bytes stay bytes: 120 is an exponent, 200 a code; neither is a number.
    assert shards.tensor("scale").tolist() == [120, 255]
    assert shards.tensor("fp8").tolist() == [[0], [200]]
    assert shards.tensor("fp4").tolist() == [[3, 7]]
    assert {shards.tensor(name).dtype for name in ("fp4", "scale", "fp8")} == {torch.uint8}
    assert shards.tensor("bf16").dtype is torch.bfloat16


def test_misaligned_floats_are_copied_and_right(tmp_path: Path) -> None:
    header = {"pad": entry("I8", [1], 0, 1), "x": entry("F32", [2], 1, 9), "y": entry("BF16", [1], 9, 11)}
    data = b"\x00" + torch.tensor([1.5, -2.0]).numpy().tobytes() + b"\x40\x40"
    shards = opened(tmp_path, header, data)
    assert shards.tensor("x").tolist() == [1.5, -2.0]
    assert shards.tensor("y").tolist() == [3.0]


def test_aligned_tensors_share_one_mapping(tmp_path: Path) -> None:
    shards = opened(tmp_path, {"x": entry("I8", [4], 0, 4)}, b"abcd")
    assert shards.tensor("x").data_ptr() == shards.tensor("x").data_ptr()


def test_mapping_warns_about_nothing_and_leaves_the_filters_alone(tmp_path: Path) -> None:
    before = list(warnings.filters)
    opened(tmp_path, {"x": entry("I8", [4], 0, 4)}, b"abcd").tensor("x")
    assert warnings.filters == before


def test_an_empty_tensor_has_its_shape(tmp_path: Path) -> None:
    shards = opened(tmp_path, {"x": entry("I8", [0, 3], 0, 0), "y": entry("I8", [1], 0, 1)}, b"a")
    assert shards.tensor("x").shape == (0, 3)


def test_the_index_of_a_byte_counts_from_the_tensor(tmp_path: Path) -> None:
    header = {"x": entry("F8_E8M0", [3], 0, 3), "y": entry("F8_E8M0", [4], 3, 7)}
    shards = opened(tmp_path, header, b"\xff\x01\x02\x03\x04\xff\xff")
    assert shards.find_byte("x", 255) == 0
    assert shards.find_byte("y", 255) == 2
    assert shards.find_byte("y", 9) is None


def test_a_byte_is_found_behind_the_first_chunk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flash41.checkpoint.reader.CHUNK_BYTES", 4)
    shards = opened(tmp_path, {"x": entry("F8_E8M0", [10], 0, 10)}, bytes(9) + b"\xff")
    assert shards.find_byte("x", 255) == 9


def test_random_access_can_be_advised_at_any_offset(tmp_path: Path) -> None:
    shards = opened(tmp_path, {"x": entry("I8", [3], 0, 3), "y": entry("I8", [9000], 3, 9003)}, bytes(9003))
    shards.advise_random("y")
    assert shards.tensor("y").sum() == 0


def test_every_tensor_of_a_checkpoint_equals_its_bytes(tmp_path: Path) -> None:
    directory = tiny_copy(tmp_path)
    shards = MappedShards(open_directory(directory))
    header, data = read_raw(directory / "model-00004-of-00005.safetensors")
    header.pop("__metadata__")
    for name, value in header.items():
        begin, end = value["data_offsets"]
        assert shards.tensor(name).contiguous().view(torch.uint8).numpy().tobytes() == data[begin:end], name


def first_shard(directory: Path) -> Path:
    return directory / "model-00001-of-00005.safetensors"


def shrink(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 8)


def touch(path: Path) -> None:
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 1))


def replace(path: Path) -> None:
    status = path.stat()
    other = path.with_name("other")
    other.write_bytes(path.read_bytes())
    os.utime(other, ns=(0, status.st_mtime_ns))
    other.rename(path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (shrink, "changed while in use"),
        (touch, "another file or newer content"),
        (replace, "another file or newer content"),
        (Path.unlink, "expected the file that was opened"),
    ],
)
def test_a_shard_that_changes_is_one_clear_error(tmp_path: Path, change: object, words: str) -> None:
    assert callable(change)
    shards = MappedShards(open_directory(tiny_copy(tmp_path)))
    shards.check_unchanged()
    change(first_shard(tmp_path / "tiny"))
    with pytest.raises(FaultyCheckpointError, match=words):
        shards.check_unchanged()
    with pytest.raises(FaultyCheckpointError, match=words):
        shards.tensor("embed.weight")
    with pytest.raises(FaultyCheckpointError, match=words):
        shards.find_byte("embed.weight", 0)
