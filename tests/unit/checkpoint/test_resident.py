from pathlib import Path

import pytest
import torch

from flash41.checkpoint import resident
from flash41.checkpoint.directory import open_directory
from flash41.checkpoint.faults import FaultyCheckpointError
from flash41.checkpoint.loader import open_checkpoint
from flash41.checkpoint.reader import MappedShards
from flash41.checkpoint.residence import Residence
from flash41.checkpoint.resident import read_resident
from flash41.checkpoint.schema import schema
from flash41.checkpoint.stored import Scope
from flash41.errors import CheckpointError
from helpers.checkpoints import TINY, tiny_copy
from helpers.config_documents import tiny_config

SPECS = list(schema(tiny_config()).values())


def shards_of(directory: Path) -> MappedShards:
    return MappedShards(open_directory(directory))


def test_every_tensor_has_the_bytes_and_the_type_of_its_mapping(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resident, "PIECE_BYTES", 1000)
    shards, seen = shards_of(TINY), list[tuple[int, int]]()
    found = read_resident(shards, SPECS, lambda done, count: seen.append((done, count)))
    for spec in SPECS:
        mapped = shards.tensor(spec.name)
        assert found[spec.name].dtype is mapped.dtype
        assert torch.equal(found[spec.name].view(torch.uint8), mapped.view(torch.uint8))
    total = sum(spec.num_bytes for spec in SPECS)
    assert seen[-1] == (total, total)


def test_a_file_that_was_cut_is_refused(tmp_path: Path) -> None:
    directory = tiny_copy(tmp_path)
    shards = shards_of(directory)
    shards.extent(SPECS[0].name)  # opened while it was whole
    path = directory / shards.files.shard_of[SPECS[0].name]
    with path.open("r+b") as file:
        file.truncate(100)
    with pytest.raises(FaultyCheckpointError, match="its file ends early"):
        read_resident(shards, SPECS[:1])


def test_a_whole_residence_outlives_its_files(tmp_path: Path) -> None:
    directory = tiny_copy(tmp_path)
    checkpoint = open_checkpoint(directory, [Scope.BACKBONE])
    checkpoint.hold(Residence(whole=True))
    kept = checkpoint.tensor("head.weight")
    before = kept.clone()
    for path in directory.glob("*.safetensors"):
        with path.open("r+b") as file:
            file.write(bytes(path.stat().st_size))
    assert torch.equal(kept, before)
    assert checkpoint.layer_experts("layers.0.ffn.experts") is None
    assert checkpoint.expert_counts == []


def test_a_dense_residence_leaves_experts_and_rows_in_the_files() -> None:
    checkpoint = open_checkpoint(TINY, [Scope.BACKBONE])
    checkpoint.hold(Residence(dense=True))
    mapped = shards_of(TINY)
    checkpoint_address = checkpoint.tensor("head.weight").data_ptr()
    assert checkpoint_address % resident.ALIGNMENT == 0
    assert checkpoint_address != mapped.tensor("head.weight").data_ptr()
    layer = checkpoint.layer_experts("layers.0.ffn.experts")
    assert layer is not None
    assert checkpoint.expert_counts == [layer.counts]
    with pytest.raises(CheckpointError, match="a name of the schema"):
        checkpoint.tensor("layers.0.ffn.experts.99.w1.weight")


def test_weights_in_memory_may_lie_in_bands_and_keep_their_values() -> None:
    mapped = open_checkpoint(TINY, [Scope.BACKBONE])
    names = ["layers.0.attn.wq_b", "layers.0.ffn.experts.0.w1", "layers.0.ffn.shared_experts.w2"]
    for residence, expected in ((Residence(whole=True), True), (Residence(dense=True), False)):
        checkpoint = open_checkpoint(TINY, [Scope.BACKBONE])
        checkpoint.hold(residence, in_bands=True)
        weights = [checkpoint.quantized(name) for name in names]
        assert [weight.in_bands for weight in weights] == [True, expected, True]  # mapped experts lie as in the file
        for name, weight in zip(names, weights, strict=True):
            assert torch.equal(weight.dequantize(), mapped.quantized(name).dequantize())
        rows = checkpoint.tensor("embed.weight")
        assert torch.equal(rows, mapped.tensor("embed.weight"))
