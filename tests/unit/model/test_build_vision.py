from pathlib import Path

import pytest
import torch

from flash41.checkpoint.loader import Checkpoint, open_checkpoint
from flash41.checkpoint.stored import Scope
from flash41.config.run import Profile
from flash41.errors import CheckpointError
from flash41.kernels.reference.backend import ReferenceKernels
from flash41.model.build_vision import build_image_encoder
from helpers.checkpoints import TINY, edit_header, tiny_copy


def build(checkpoint: Checkpoint, profile: Profile = Profile.VENDOR) -> torch.nn.Module:
    return build_image_encoder(checkpoint, profile, ReferenceKernels())


def test_every_vision_tensor_gets_an_owner() -> None:
    checkpoint = open_checkpoint(TINY, {Scope.VISION})
    with pytest.raises(CheckpointError, match=r"unrouted tensors .*aligner\.w1\.bias"):
        checkpoint.assert_all_bound(Scope.VISION)
    build(checkpoint)
    checkpoint.assert_all_bound(Scope.VISION)


def test_tensors_of_other_parts_are_not_touched() -> None:
    checkpoint = open_checkpoint(TINY, {Scope.VISION, Scope.BACKBONE})
    build(checkpoint)
    with pytest.raises(CheckpointError, match="unrouted tensors"):
        checkpoint.assert_all_bound(Scope.BACKBONE)


def test_a_checkpoint_opened_without_its_tower_is_refused() -> None:
    with pytest.raises(
        CheckpointError, match=r"scope of vision.*: got 'vision', expected an opened scope \(backbone\)"
    ):
        build(open_checkpoint(TINY, {Scope.BACKBONE}))


@pytest.mark.parametrize("name", ["image_newline", "vision.blocks.1.attn.wo.bias", "aligner.w2.weight"])
def test_a_missing_tensor_is_named_before_anything_is_built(name: str, tmp_path: Path) -> None:
    directory = tiny_copy(tmp_path)
    shard = next(path for path in sorted(directory.glob("*.safetensors")) if name.encode() in path.read_bytes())
    edit_header(shard, lambda header: header.update({f"{name}.old": header.pop(name)}))
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(directory, {Scope.VISION})
    assert name in str(caught.value)


def test_weights_stay_as_they_are_stored() -> None:
    checkpoint = open_checkpoint(TINY, {Scope.VISION})
    encoder = build(checkpoint, Profile.FP32)
    block = encoder.get_submodule("tower.blocks.0")
    assert block.wqkv.weight.dtype is torch.bfloat16
    assert block.wqkv.weight.data_ptr() == checkpoint.tensor("vision.blocks.0.attn.wqkv.weight").data_ptr()
    assert block.w1.bias is None
    assert block.w2.bias is None
