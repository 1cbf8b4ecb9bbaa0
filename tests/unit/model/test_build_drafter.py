"""Which draft tensors are read, when, and that none can be missing."""

import json
from pathlib import Path

import pytest

from flash41.checkpoint.loader import open_checkpoint
from flash41.checkpoint.reader import MappedShards
from flash41.checkpoint.stored import Scope
from flash41.checkpoint.synthetic import synthetic_weights
from flash41.checkpoint.writer import write_checkpoint
from flash41.config.huggingface import config_from_dict
from flash41.config.run import Profile
from flash41.engine.load import LoadedModel, load_model
from flash41.errors import CheckpointError
from flash41.kernels.reference.backend import ReferenceKernels
from flash41.model import build_drafter as module
from flash41.model.build import build_backbone
from flash41.model.build_drafter import build_drafter
from helpers.checkpoints import TINY, edit_header, edit_json, read_raw, tiny_copy
from helpers.config_documents import patched, tiny_text
from helpers.models import write_second

VENDOR = Profile.VENDOR


def load(directory: Path, drafts: bool = True) -> LoadedModel:
    return load_model(directory, VENDOR, VENDOR.default_pool, ReferenceKernels(), drafts=drafts)


def draft_names() -> list[str]:
    return [name for name, spec in open_checkpoint(TINY).specs.items() if spec.scope is Scope.DRAFT]


def without(directory: Path, name: str) -> Path:
    """Takes a tensor out of the index and out of its shard's header."""
    edit_json(directory / "model.safetensors.index.json", lambda index: index["weight_map"].pop(name))
    for path in directory.glob("*.safetensors"):
        if name in read_raw(path)[0]:
            edit_header(path, lambda header: header.pop(name))
    return directory


def test_every_draft_tensor_has_an_owner() -> None:
    model = load(TINY)
    model.checkpoint.assert_all_bound(Scope.DRAFT)
    assert model.drafter is not None
    assert len(model.drafter.stages) == 3


def test_draft_tensors_are_touched_only_where_drafting_is_on(monkeypatch: pytest.MonkeyPatch) -> None:
    touched: list[str] = []
    tensor = MappedShards.tensor

    def record(shards: MappedShards, name: str) -> object:
        touched.append(name)
        return tensor(shards, name)

    monkeypatch.setattr(MappedShards, "tensor", record)
    assert load(TINY, drafts=False).drafter is None
    assert not any(name.startswith("mtp.") for name in touched)
    load(TINY)
    backbone = [place for place, name in enumerate(touched) if not name.startswith("mtp.")]
    drafts = [place for place, name in enumerate(touched) if name.startswith("mtp.")]
    assert min(drafts) > max(backbone)  # a second pass


@pytest.mark.parametrize(
    "name",
    [
        "mtp.0.main_proj.weight",
        "mtp.0.main_proj.scale",
        "mtp.1.ffn.shared_experts.w3.weight",
        "mtp.1.ffn.gate.bias_vl",
        "mtp.2.norm.weight",
        "mtp.2.markov_head.embed.weight",
        "mtp.2.confidence_head.proj.weight",
        "mtp.2.ffn.experts.7.w2.scale",
        "mtp.2.hc_ffn_base",
    ],
)
@pytest.mark.parametrize("drafts", [True, False])
def test_a_missing_draft_tensor_is_a_load_error(name: str, drafts: bool, tmp_path: Path) -> None:
    # Without drafting too: a checkpoint is compared with its schema as a whole.
    with pytest.raises(CheckpointError, match=name.replace(".", r"\.")):
        load(without(tiny_copy(tmp_path), name), drafts)


def test_a_drafter_that_leaves_a_tensor_unused_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Forgetful(module.Builder):
        """Uses the weight of `markov_head.embed` for both tables."""

        def plain(self, name: str, wide: bool = False) -> object:
            return super().plain(name.replace("markov_head.head", "markov_head.embed"), wide)

    monkeypatch.setattr(module, "Builder", Forgetful)
    with pytest.raises(CheckpointError, match=r"unrouted tensors \[mtp\.2\.markov_head\.head\.weight\]"):
        load(TINY)


def test_a_checkpoint_opened_without_its_draft_tensors_cannot_build_them() -> None:
    kernels = ReferenceKernels()
    checkpoint = open_checkpoint(TINY, {Scope.BACKBONE})
    for layer_id in checkpoint.config.engram.layer_ids:
        checkpoint.engram_table(layer_id)
    backbone = build_backbone(checkpoint, VENDOR, VENDOR.default_pool, kernels)
    with pytest.raises(CheckpointError, match=r"scope of mtp\.0\.main_proj\.weight: got 'draft'"):
        build_drafter(checkpoint, backbone, VENDOR, VENDOR.default_pool, kernels)


def test_embedding_and_head_are_those_of_the_target() -> None:
    model = load(TINY)
    assert model.drafter is not None
    assert model.drafter.embed is model.backbone.embed
    assert model.drafter.head is model.backbone.head
    assert not any(".embed.weight" in name and "markov" not in name for name in draft_names())


def test_stages_have_the_experts_of_the_drafter_and_windows_only() -> None:
    model = load(TINY)
    assert model.drafter is not None
    for stage in model.drafter.stages:
        assert stage.ffn.gate.shape[0] == model.config.dspark.num_experts == 8
        assert (stage.attn.compressor, stage.attn.indexer, stage.engram) == (None, None, None)


def test_a_single_stage_is_first_and_last(tmp_path: Path) -> None:
    write_second(tmp_path / "second")
    model = load(tmp_path / "second")
    assert model.drafter is not None
    assert len(model.drafter.stages) == 1
    model.checkpoint.assert_all_bound(Scope.DRAFT)


def test_a_model_without_stages_has_no_drafter(tmp_path: Path) -> None:
    text = {
        "num_hidden_layers": 2,
        "num_nextn_predict_layers": 0,
        "compress_ratios": [0, 0],
        "kv_source_layer_ids": [],
        "index_source_layer_ids": [],
        "candidate_source_layer_id": -1,
        "engram_layer_ids": [],
        "engram_num_embeddings": [],
        "dspark_target_layer_ids": [],
    }
    patch = {f"text_config.{key}": value for key, value in text.items()}
    config = config_from_dict(patched(patch, json.loads(tiny_text())))
    tokenizer = {"tokenizer.json": (TINY / "tokenizer.json").read_bytes()}
    directory = tmp_path / "plain"
    write_checkpoint(directory, config, synthetic_weights(config, 1), num_shards=1, tokenizer_files=tokenizer)
    assert load(directory).drafter is None
