from pathlib import Path

import pytest
import torch

from flash41.checkpoint.reader import MappedShards
from flash41.checkpoint.stored import Scope
from flash41.config.run import Profile
from flash41.engine.load import LoadedModel, load_model
from flash41.errors import CheckpointError, ConfigError
from flash41.kernels.reference.backend import ReferenceKernels
from helpers.checkpoints import TINY, edit_json, set_byte, tiny_copy
from helpers.models import Models

VENDOR = Profile.VENDOR


def load(directory: Path) -> LoadedModel:
    return load_model(directory, VENDOR, VENDOR.default_pool, ReferenceKernels())


def configure(directory: Path, **text: int) -> None:
    edit_json(directory / "config.json", lambda document: document["text_config"].update(text))


@pytest.mark.parametrize("profile", Profile)
def test_activations_are_bf16_except_in_profile_fp32(profile: Profile, models: Models) -> None:
    expected = torch.float32 if profile is Profile.FP32 else torch.bfloat16
    assert models(TINY, profile).dtype is expected


def test_tables_and_token_map_belong_to_the_checkpoint(models: Models) -> None:
    model = models(TINY, VENDOR)
    assert tuple(model.tables) == model.config.engram.layer_ids
    for (table_hash, table), num_rows in zip(model.tables.values(), model.config.engram.table_rows, strict=True):
        assert table_hash.num_rows == table.num_rows == num_rows
    assert model.token_map.num_classes == model.config.engram.compressed_vocab_size


def test_every_backbone_tensor_is_used(models: Models) -> None:
    models(TINY, VENDOR).checkpoint.assert_all_bound(Scope.BACKBONE)


def test_draft_tensors_are_opened_only_when_asked_for(models: Models) -> None:
    name = "mtp.0.attn_norm.weight"
    model = models(TINY, VENDOR)
    assert model.checkpoint.tensor(name).shape == (model.config.hidden_size,)
    with pytest.raises(CheckpointError, match=f"scope of {name}: got 'draft', expected an opened scope"):
        load(TINY).checkpoint.tensor(name)


def test_a_runner_can_draft_only_where_stages_were_loaded(models: Models) -> None:
    model = models(TINY, VENDOR)
    shapes = [model.runner(1, 8, drafts=drafts).store.shape for drafts in (False, True)]
    assert [(shape.num_layers, shape.ring, shape.member_depth) for shape in shapes] == [(10, 8, 2), (13, 13, 7)]
    with pytest.raises(AssertionError, match="the draft stages were not loaded"):
        load(TINY).runner(1, 8, drafts=True)


def test_the_vision_tower_is_opened_only_when_asked_for(models: Models) -> None:
    assert models(TINY, VENDOR).encoder is not None
    model = load(TINY)
    assert model.encoder is None
    with pytest.raises(CheckpointError, match="scope of image_start: got 'vision', expected an opened scope"):
        model.checkpoint.tensor("image_start")


@pytest.fixture
def no_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: MappedShards, name: str) -> None:
        raise AssertionError(f"{name} was read")

    monkeypatch.setattr(MappedShards, "tensor", refuse)


@pytest.mark.usefixtures("no_weights")
def test_a_wrong_token_map_is_refused_before_a_weight_is_read(tmp_path: Path) -> None:
    directory = tiny_copy(tmp_path)
    edit_json(
        directory / "config.json", lambda document: document["text_config"].update(engram_compressed_vocab_size=9)
    )
    with pytest.raises(ConfigError, match=r"engram_compressed_vocab_size: got 437 classes .*, expected 9"):
        load(directory)


@pytest.mark.usefixtures("no_weights")
def test_a_missing_tokenizer_is_refused_before_a_weight_is_read(tmp_path: Path) -> None:
    directory = tiny_copy(tmp_path)
    (directory / "tokenizer.json").unlink()
    with pytest.raises(CheckpointError, match=r"tokenizer.json: got 'No such file or directory'"):
        load(directory)


@pytest.mark.usefixtures("no_weights")
def test_a_shard_that_disagrees_with_the_schema_is_refused_before_a_weight_is_read(tmp_path: Path) -> None:
    directory = tiny_copy(tmp_path)
    configure(directory, n_routed_experts=15)
    with pytest.raises(CheckpointError, match=r"layers.0.ffn.experts.15"):
        load(directory)


def test_a_nan_scale_of_a_dense_weight_is_refused_at_opening(tmp_path: Path) -> None:
    directory = tiny_copy(tmp_path)
    set_byte(directory, "layers.3.attn.wq_a.scale", 1, 255)
    with pytest.raises(CheckpointError, match=r"layers.3.attn.wq_a.scale: scale byte 255 \(NaN\) at \[0, 1\]"):
        load(directory)
