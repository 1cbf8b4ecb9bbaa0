import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from torch import Tensor

from flash41.checkpoint.faults import FaultyCheckpointError
from flash41.checkpoint.headers import read_header
from flash41.checkpoint.loader import open_checkpoint
from flash41.checkpoint.writer import write_checkpoint
from flash41.errors import CheckpointError, ConfigError
from helpers.checkpoints import TINY, patterned_weights
from helpers.config_documents import tiny_config

CONFIG = tiny_config()


@pytest.fixture(scope="module")
def weights() -> dict[str, Tensor]:
    return patterned_weights(CONFIG)


def raw(tensor: Tensor) -> bytes:
    return tensor.contiguous().view(torch.uint8).numpy().tobytes()


def digests(directory: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(directory.iterdir())}


def test_what_was_written_reads_back_bit_for_bit(tmp_path: Path, weights: dict[str, Tensor]) -> None:
    write_checkpoint(tmp_path / "out", CONFIG, weights, num_shards=5)
    checkpoint = open_checkpoint(tmp_path / "out")
    assert checkpoint.config == CONFIG
    for name, tensor in weights.items():
        assert raw(checkpoint.tensor(name)) == raw(tensor), name


def test_the_safetensors_library_reads_the_same(tmp_path: Path, weights: dict[str, Tensor]) -> None:
    write_checkpoint(tmp_path / "out", CONFIG, weights, num_shards=5)
    seen = {}
    for path in sorted((tmp_path / "out").glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            assert file.metadata() == {"format": "pt"}
            seen |= {name: raw(file.get_tensor(name)) for name in file.keys()}  # noqa: SIM118 (no mapping)
    assert seen == {name: raw(tensor) for name, tensor in weights.items()}


def test_a_single_file_has_no_index(tmp_path: Path, weights: dict[str, Tensor]) -> None:
    write_checkpoint(
        tmp_path / "out", CONFIG, weights, max_shard_bytes=10**9, tokenizer_files={"tokenizer.json": b"{}"}
    )
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "config.json",
        "model.safetensors",
        "tokenizer.json",
    ]
    open_checkpoint(tmp_path / "out")


def test_the_same_arguments_give_the_same_bytes(tmp_path: Path, weights: dict[str, Tensor]) -> None:
    reordered = dict(reversed(weights.items()))
    write_checkpoint(tmp_path / "one", CONFIG, weights, num_shards=7, metadata={"seed": "3"})
    write_checkpoint(tmp_path / "two", CONFIG, reordered.__getitem__, num_shards=7, metadata={"seed": "3"})
    assert digests(tmp_path / "one") == digests(tmp_path / "two")
    shard = next(iter((tmp_path / "one").glob("*.safetensors")))
    assert read_header(shard).metadata == {"format": "pt", "seed": "3"}


def test_tensors_that_are_not_contiguous_are_written_in_order(tmp_path: Path, weights: dict[str, Tensor]) -> None:
    name = "layers.0.attn.wq_a.weight"
    turned = weights | {name: weights[name].T.contiguous().T}
    assert not turned[name].is_contiguous()
    write_checkpoint(tmp_path / "out", CONFIG, turned, num_shards=3)
    assert raw(open_checkpoint(tmp_path / "out").tensor(name)) == raw(weights[name])


def test_every_wrong_tensor_is_listed_and_nothing_is_left(tmp_path: Path, weights: dict[str, Tensor]) -> None:
    damaged = dict(weights)
    del damaged["norm.weight"]
    damaged["layers.0.hc_head_fn"] = torch.zeros(1)
    damaged["embed.weight"] = damaged["embed.weight"].float()
    damaged["head.weight"] = damaged["head.weight"].T
    damaged["layers.0.ffn.experts.0.w1.weight"] = damaged["layers.0.ffn.experts.0.w1.weight"].view(torch.int8)
    with pytest.raises(FaultyCheckpointError) as caught:
        write_checkpoint(tmp_path / "out", CONFIG, damaged, num_shards=3)
    named = [name for fault in caught.value.faults for name in fault.names]
    assert sorted(named) == [
        "embed.weight",
        "head.weight",
        "layers.0.ffn.experts.0.w1.weight",
        "layers.0.hc_head_fn",
        "norm.weight",
    ]
    assert "wrong embed.weight BF16: got torch.float32 [512, 128], expected torch.bfloat16 [512, 128]" in str(
        caught.value
    )
    assert list(tmp_path.iterdir()) == []


def test_a_failure_of_the_source_leaves_nothing(tmp_path: Path, weights: dict[str, Tensor]) -> None:
    def tensors(name: str) -> Tensor:
        if name == "norm.weight":
            raise RuntimeError("no more")
        return weights[name]

    with pytest.raises(RuntimeError, match="no more"):
        write_checkpoint(tmp_path / "out", CONFIG, tensors, num_shards=3)
    assert list(tmp_path.iterdir()) == []


def test_an_existing_target_is_kept_unless_forced(tmp_path: Path, weights: dict[str, Tensor]) -> None:
    write_checkpoint(tmp_path / "out", CONFIG, weights, num_shards=3)
    with pytest.raises(CheckpointError, match="a name that does not exist yet"):
        write_checkpoint(tmp_path / "out", CONFIG, weights, num_shards=1)
    assert len(list((tmp_path / "out").glob("*.safetensors"))) == 3
    write_checkpoint(tmp_path / "out", CONFIG, weights, num_shards=1, force=True)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert len(list((tmp_path / "out").glob("*.safetensors"))) == 1


def a_folder(target: Path) -> None:
    target.mkdir()
    (target / "thesis.txt").write_text("years of work")


def a_file(target: Path) -> None:
    target.write_text("years of work")


def a_link(target: Path) -> None:
    target.symlink_to(TINY)


@pytest.mark.parametrize("make", [a_folder, a_file, a_link])
def test_force_replaces_nothing_but_checkpoints(
    tmp_path: Path, weights: dict[str, Tensor], make: Callable[[Path], None]
) -> None:
    make(tmp_path / "out")
    with pytest.raises(CheckpointError, match="nothing else is replaced"):
        write_checkpoint(tmp_path / "out", CONFIG, weights, num_shards=1, force=True)
    assert (tmp_path / "out").exists()
    assert (tmp_path / "out").is_symlink() or "years" in "".join(
        path.read_text() for path in [tmp_path / "out", *tmp_path.glob("out/*")] if path.is_file()
    )


def test_force_fills_an_empty_folder(tmp_path: Path, weights: dict[str, Tensor]) -> None:
    (tmp_path / "out").mkdir()
    write_checkpoint(tmp_path / "out", CONFIG, weights, num_shards=1, force=True)
    open_checkpoint(tmp_path / "out")


def test_a_place_that_cannot_be_written_is_a_clear_error(tmp_path: Path, weights: dict[str, Tensor]) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match=f"writing {tmp_path}/file/out: got"):
        write_checkpoint(tmp_path / "file" / "out", CONFIG, weights, num_shards=1)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "../evil", "a/b", "model.safetensors.index.json"])
def test_tokenizer_files_cannot_take_other_names(tmp_path: Path, weights: dict[str, Tensor], name: str) -> None:
    with pytest.raises(CheckpointError, match="tokenizer files"):
        write_checkpoint(tmp_path / "out", CONFIG, weights, num_shards=1, tokenizer_files={name: b""})


@pytest.mark.parametrize("sizes", [{}, {"num_shards": 3, "max_shard_bytes": 10}])
def test_exactly_one_size_must_be_given(tmp_path: Path, weights: dict[str, Tensor], sizes: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="exactly one of them"):
        write_checkpoint(
            tmp_path / "out",
            CONFIG,
            weights,
            num_shards=sizes.get("num_shards"),
            max_shard_bytes=sizes.get("max_shard_bytes"),
        )


def test_the_golden_checkpoint_survives_a_rewrite(tmp_path: Path) -> None:
    golden = open_checkpoint(TINY)
    write_checkpoint(tmp_path / "out", golden.config, golden.tensor, num_shards=5)
    again = open_checkpoint(tmp_path / "out")
    assert all(raw(again.tensor(name)) == raw(golden.tensor(name)) for name in golden.specs)
    for name in ("model-00004-of-00005.safetensors", "model-00005-of-00005.safetensors"):
        assert read_header(tmp_path / "out" / name).tensors.keys() == read_header(TINY / name).tensors.keys()
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == 6_717_760
