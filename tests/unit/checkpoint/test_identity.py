import re
from pathlib import Path

import pytest

from flash41.checkpoint.directory import open_directory
from flash41.checkpoint.identity import model_hash
from flash41.errors import CheckpointError
from helpers.checkpoints import edit_json, set_byte, tiny_copy


def named(directory: Path) -> str:
    return model_hash(open_directory(directory))


def test_a_name_is_thirty_two_hexadecimal_digits_and_the_same_for_a_copy(tmp_path: Path) -> None:
    first, second = tiny_copy(tmp_path / "a"), tiny_copy(tmp_path / "b")
    assert re.fullmatch("[0-9a-f]{32}", named(first))
    assert named(first) == named(second)


def test_another_configuration_has_another_name(tmp_path: Path) -> None:
    directory = tiny_copy(tmp_path)
    before = named(directory)
    edit_json(directory / "config.json", lambda document: document["text_config"].update(rope_theta=20000))
    assert named(directory) != before


def test_another_header_or_length_has_another_name(tmp_path: Path) -> None:
    directory = tiny_copy(tmp_path)
    before = named(directory)
    shard = sorted(directory.glob("*.safetensors"))[0]
    data = shard.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = data[8 : 8 + length]
    # One space more behind the header's closing brace: the same tensors, other bytes.
    shard.write_bytes((length + 1).to_bytes(8, "little") + header + b" " + data[8 + length :])
    assert named(directory) != before


def test_weights_are_not_read(tmp_path: Path) -> None:
    directory = tiny_copy(tmp_path)
    before = named(directory)
    set_byte(directory, "layers.3.attn.wq_a.weight", 1, 7)
    assert named(directory) == before


def test_a_file_that_went_is_an_error_of_the_checkpoint(tmp_path: Path) -> None:
    directory = tiny_copy(tmp_path)
    files = open_directory(directory)
    (directory / "config.json").unlink()
    with pytest.raises(CheckpointError, match="expected files that can be read"):
        model_hash(files)
