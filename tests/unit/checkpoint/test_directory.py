import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flash41.checkpoint.directory import INDEX_FILE, open_directory, read_index, survey
from flash41.checkpoint.faults import FaultKind, FaultyCheckpointError
from helpers.checkpoints import TINY, edit_header, edit_json, read_raw, shard_bytes, tiny_copy

FIRST, SECOND = "model-00001-of-00005.safetensors", "model-00002-of-00005.safetensors"


def refusal(directory: Path) -> str:
    with pytest.raises(FaultyCheckpointError) as caught:
        open_directory(directory)
    return str(caught.value)


def only_fault(directory: Path) -> tuple[FaultKind, str]:
    _, faults = survey(directory)
    assert len(faults) == 1, [fault.message for fault in faults]
    return faults[0].kind, faults[0].message


def test_the_golden_checkpoint_opens_clean() -> None:
    files = open_directory(TINY)
    assert (len(files.shard_of), files.payload_bytes, files.file_bytes) == (1568, 6_717_760, 6_885_256)
    assert sorted(files.shards) == [f"model-0000{number}-of-00005.safetensors" for number in range(1, 6)]
    assert files.entry("embed.weight").shape == (512, 128)
    assert not files.unreadable


def test_a_single_file_needs_no_index(tmp_path: Path) -> None:
    header = {"a": {"dtype": "I8", "shape": [2], "data_offsets": [0, 2]}}
    (tmp_path / "model.safetensors").write_bytes(shard_bytes(header, b"ab"))
    (tmp_path / "config.json").write_text("{}")
    files = open_directory(tmp_path)
    assert files.index is None
    assert list(files.shard_of) == ["a"]


def test_shards_without_an_index_are_refused(tmp_path: Path) -> None:
    directory = tiny_copy(tmp_path)
    (directory / INDEX_FILE).unlink()
    assert "expected model.safetensors alone or model.safetensors.index.json" in refusal(directory)


def test_a_missing_directory_is_one_fault(tmp_path: Path) -> None:
    kind, message = only_fault(tmp_path / "nowhere")
    assert kind is FaultKind.DIRECTORY
    assert "expected a readable directory" in message
    (tmp_path / "file").write_text("")
    assert "expected a readable directory" in only_fault(tmp_path / "file")[1]


def test_a_directory_without_config_says_so(tmp_path: Path) -> None:
    directory = tiny_copy(tmp_path)
    (directory / "config.json").unlink()
    kind, message = only_fault(directory)
    assert kind is FaultKind.DIRECTORY
    assert message.startswith("config.json: got no such file")


def test_a_truncated_shard_says_both_lengths(tmp_path: Path) -> None:
    directory = tiny_copy(tmp_path)
    path = directory / SECOND
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.truncate(size - 1000)
    assert only_fault(directory) == (FaultKind.SHARD, f"{SECOND}: got {size - 1000} bytes, expected {size}")


def test_a_listed_shard_that_is_missing_is_one_fault_and_its_tensors_are_remembered(tmp_path: Path) -> None:
    directory = tiny_copy(tmp_path)
    (directory / SECOND).unlink()
    kind, message = only_fault(directory)
    assert kind is FaultKind.SHARD
    assert f"missing [{SECOND}]" in message
    files, _ = survey(directory)
    header, _ = read_raw(TINY / SECOND)
    assert files.unreadable == header.keys() - {"__metadata__"}


def test_a_shard_that_is_not_listed_is_refused(tmp_path: Path) -> None:
    directory = tiny_copy(tmp_path)
    (directory / "model-00006-of-00005.safetensors").write_bytes(shard_bytes({}))
    assert only_fault(directory)[1].startswith("shards: unlisted [model-00006-of-00005.safetensors]")


def test_what_macos_leaves_beside_a_shard_is_told_from_a_shard(tmp_path: Path) -> None:
    directory = tiny_copy(tmp_path)
    (directory / f"._{SECOND}").write_bytes(b"notes")
    message = only_fault(directory)[1]
    assert message.startswith(f"shards: unlisted [._{SECOND}]")
    assert message.endswith("files named ._* are notes of macOS and can be deleted")


def test_a_name_in_two_shards_is_refused(tmp_path: Path) -> None:
    directory = tiny_copy(tmp_path)
    edit_header(directory / SECOND, lambda header: header.update({"norm.weight": header.pop(list(header)[1])}))
    assert f"tensor norm.weight: got a place in {SECOND} and in model-00003" in refusal(directory)


def test_an_index_that_misplaces_a_tensor_names_both_shards(tmp_path: Path) -> None:
    directory = tiny_copy(tmp_path)
    edit_json(directory / INDEX_FILE, lambda index: index["weight_map"].update({"embed.weight": SECOND}))
    message = refusal(directory)
    assert f"{FIRST}: holds unlisted [embed.weight]" in message
    assert f"{SECOND}: lacks [embed.weight]" in message


def test_a_wrong_total_is_refused(tmp_path: Path) -> None:
    directory = tiny_copy(tmp_path)
    edit_json(directory / INDEX_FILE, lambda index: index["metadata"].update({"total_size": 1}))
    assert only_fault(directory) == (FaultKind.INDEX, f"{INDEX_FILE}: total_size: got 1 bytes, expected 6717760")


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda index: index.pop("metadata"), "metadata.total_size: got None"),
        (lambda index: index["metadata"].update(total_size=True), "metadata.total_size: got True"),
        (lambda index: index["metadata"].update(total_size=6717760.0), "metadata.total_size: got 6717760.0"),
        (lambda index: index.update(weight_map={}), "weight_map: got {}"),
        (lambda index: index.update(weight_map=[]), "weight_map: got []"),
        (lambda index: index["weight_map"].update({"embed.weight": ["x"]}), "weight_map['embed.weight']: got ['x']"),
        (lambda index: index["weight_map"].update({"embed.weight": "../x.safetensors"}), "plain name"),
        (lambda index: index["weight_map"].update({"embed.weight": "/x.safetensors"}), "plain name"),
        (lambda index: index["weight_map"].update({"embed.weight": "config.json"}), "plain name"),
    ],
)
def test_a_damaged_index_is_refused(tmp_path: Path, edit: Callable[[dict[str, Any]], None], words: str) -> None:
    directory = tiny_copy(tmp_path)
    edit_json(directory / INDEX_FILE, edit)
    with pytest.raises(FaultyCheckpointError) as caught:
        read_index(directory)
    assert words in str(caught.value)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"weight_map": {"a": "b", "a": "b"}}', "[" * 100_000])
def test_an_index_that_is_no_strict_json_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / INDEX_FILE).write_text(text)
    with pytest.raises(FaultyCheckpointError, match="expected strict JSON"):
        read_index(tmp_path)


def test_every_fault_of_a_directory_is_reported_at_once(tmp_path: Path) -> None:
    directory = tiny_copy(tmp_path)
    (directory / "config.json").unlink()
    (directory / FIRST).write_bytes(b"junk")
    (directory / SECOND).unlink()
    edit_header(directory / "model-00003-of-00005.safetensors", lambda h: h["norm.weight"].update(dtype="F16"))
    message = refusal(directory)
    for words in ("config.json: got no such file", "got 4 bytes", f"missing [{SECOND}]", "got 'F16'"):
        assert words in message


def gguf(directory: Path) -> None:
    (directory / "weights-Q4_K.gguf").write_bytes(b"GGUF")


def pickle(directory: Path) -> None:
    (directory / "pytorch_model.bin").write_bytes(b"\x80")


def renamed(old: str, new: str) -> Callable[[Path], None]:
    def damage(directory: Path) -> None:
        shutil.copytree(TINY, directory, dirs_exist_ok=True)
        for path in directory.glob("*.safetensors"):
            header, data = read_raw(path)
            path.chmod(0o644)
            path.write_bytes(shard_bytes({name.replace(old, new): entry for name, entry in header.items()}, data))

    return damage


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (gguf, "a GGUF file"),
        (pickle, "a PyTorch pickle, which is never opened"),
        (renamed("compressor.norm.weight", "compressor.ape"), "a DeepSeek-V4 checkpoint"),
        (renamed("ffn.gate.bias_vl", "ffn.gate.tid2eid"), "a DeepSeek-V4 checkpoint"),
        (renamed("hc_attn_fn", "hc_head_fn"), "a DeepSeek-V4 checkpoint"),
        (renamed("wq_a.scale", "wq_a.weight_scale_inv"), "requantised or converted derivative"),
        (renamed("layers.", "model.layers."), "carry no 'model.'"),
    ],
)
def test_a_checkpoint_of_another_kind_is_named(tmp_path: Path, damage: Callable[[Path], None], words: str) -> None:
    damage(tmp_path)
    message = refusal(tmp_path)
    assert words in message
    assert "expected a DeepSeek-V4.1 checkpoint as released" in message


def test_pickles_beside_a_whole_checkpoint_are_no_fault(tmp_path: Path) -> None:
    directory = tiny_copy(tmp_path)
    pickle(directory)
    assert survey(directory)[1] == []


def test_shards_behind_links_are_read(tmp_path: Path) -> None:
    for path in TINY.iterdir():
        (tmp_path / path.name).symlink_to(path)
    assert len(open_directory(tmp_path).shard_of) == 1568


def test_index_entries_are_plain_json(tmp_path: Path) -> None:
    index = read_index(TINY)
    assert index.total_bytes == 6_717_760
    assert index.shard_of == json.loads((TINY / INDEX_FILE).read_text())["weight_map"]
