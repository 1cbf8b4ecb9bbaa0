import dataclasses
import re
from collections import Counter

import pytest

from flash41.checkpoint.schema import schema
from flash41.checkpoint.stored import CutRule, Scope, StoredDtype, Subsystem, TensorSpec
from flash41.config.architecture import ModelConfig
from flash41.parallel.sharding import Cut, cut_of
from helpers.checkpoints import TINY, published, read_raw
from helpers.config_documents import release_config, tiny_config


@pytest.fixture(scope="module")
def release() -> dict[str, TensorSpec]:
    return schema(release_config())


def pattern(name: str) -> str:
    name = re.sub(r"\.experts\.\d+\.", ".experts.{e}.", name)
    name = re.sub(r"^mtp\.\d+\.", "mtp.{i}.", name)
    name = re.sub(r"^vision\.blocks\.\d+\.", "vision.blocks.{b}.", name)
    return name if ".engram.embed." in name else re.sub(r"^layers\.\d+\.", "layers.{L}.", name)


def test_release_schema_equals_the_published_patterns(release: dict[str, TensorSpec]) -> None:
    found = Counter((pattern(s.name), s.shape, s.dtype.value, s.cut.value) for s in release.values())
    wanted = {(p["pattern"], tuple(p["shape"]), p["dtype"], p["cut"]): p["count"] for p in published()["schema"]}
    assert found == wanted


def test_release_totals_are_exact_to_the_byte(release: dict[str, TensorSpec]) -> None:
    totals = published()["totals"]
    assert len(release) == totals["tensors"] == 96_085
    assert sum(spec.num_bytes for spec in release.values()) == totals["payload_bytes"] == 510_286_023_000
    assert sum(spec.layout.num_parameters for spec in release.values()) == totals["params"]
    assert sum(spec.layout.num_elements for spec in release.values()) == totals["elements_incl_scales"]


def test_tiny_schema_equals_the_headers_of_the_golden_checkpoint() -> None:
    found = {}
    for path in TINY.glob("*.safetensors"):
        header, _ = read_raw(path)
        header.pop("__metadata__")
        found |= {name: (entry["dtype"], tuple(entry["shape"])) for name, entry in header.items()}
    assert {name: (s.dtype.value, s.shape) for name, s in schema(tiny_config()).items()} == found


@pytest.mark.parametrize(
    "name", ["layers.0.hc_head_fn", "layers.3.ffn.gate.tid2eid", "image_pad", "mtp.0.embed.weight"]
)
def test_names_of_other_models_are_absent(release: dict[str, TensorSpec], name: str) -> None:
    assert name not in release


def test_names_carry_no_prefix_and_scales_no_suffix(release: dict[str, TensorSpec]) -> None:
    assert not [n for n in release if n.startswith("model.") or "weight_scale" in n or "gate_proj" in n]
    assert not [n for n in release if "compressor.ape" in n or n.endswith("scale_inv")]


def test_every_scale_names_the_weight_whose_codes_it_scales(release: dict[str, TensorSpec]) -> None:
    scales = [spec for spec in release.values() if spec.scale_for]
    assert len(scales) == sum(spec.dtype is StoredDtype.F8_E8M0 for spec in release.values())
    for spec in scales:
        weight = release[str(spec.scale_for)]
        rows = 1 if weight.subsystem in (Subsystem.ROUTED, Subsystem.ENGRAM_TABLE) else 32
        height, width = weight.layout.logical_shape
        assert spec.shape == (-(-height // rows), -(-width // 32)), spec.name


def test_residual_mixing_scales_are_weights_not_scales(release: dict[str, TensorSpec]) -> None:
    spec = release["layers.0.hc_attn_scale"]
    assert spec.scale_for is None
    assert spec.layout.num_parameters == 3


def test_packed_experts_count_two_parameters_a_byte(release: dict[str, TensorSpec]) -> None:
    spec = release["layers.39.ffn.experts.383.w2.weight"]
    assert (spec.shape, spec.layout.logical_shape) == ((5120, 1152), (5120, 2304))
    assert (spec.layout.num_parameters, spec.num_bytes) == (5120 * 2304, 5120 * 1152)
    assert (spec.block_id, spec.expert_id, spec.scope) == (39, 383, Scope.BACKBONE)


def test_draft_stages_have_their_own_expert_count_and_scope(release: dict[str, TensorSpec]) -> None:
    drafts = [spec for spec in release.values() if spec.name.startswith("mtp.")]
    assert all(spec.scope is Scope.DRAFT for spec in drafts)
    assert max(spec.expert_id for spec in drafts if spec.expert_id is not None) == 127
    assert release["mtp.2.ffn.gate.bias_vl"].shape == (128,)


def test_cut_rules_agree_with_the_rules_of_the_parallel_room(release: dict[str, TensorSpec]) -> None:
    project = {
        CutRule.REPLICATED: {Cut.REPLICATED},
        CutRule.AXIS0: {Cut.AXIS0, Cut.VOCAB},
        CutRule.AXIS1: {Cut.AXIS1},
        CutRule.INDEX_HEADS: {Cut.REPLICATED},
        CutRule.SHARED_AXIS0: {Cut.REPLICATED, Cut.AXIS0},
        CutRule.SHARED_AXIS1: {Cut.REPLICATED, Cut.AXIS1},
        CutRule.EXPERT_AXIS0: {Cut.EXPERT},
        CutRule.EXPERT_AXIS1: {Cut.EXPERT},
        CutRule.TABLE_ROWS: {Cut.ROWS},
    }
    examples = {(pattern(spec.name), spec.cut): spec for spec in release.values()}.values()
    assert [s.name for s in examples if cut_of(s.name, expert_parallel=True) not in project[s.cut]] == []


def changed(config: ModelConfig, section: str, **values: object) -> ModelConfig:
    return dataclasses.replace(config, **{section: dataclasses.replace(getattr(config, section), **values)})


def test_scale_grids_are_rounded_up_for_odd_widths() -> None:
    specs = schema(changed(tiny_config(), "moe", intermediate_size=70))
    assert specs["layers.0.ffn.shared_experts.w1.scale"].shape == (3, 4)
    assert specs["layers.0.ffn.shared_experts.w2.scale"].shape == (4, 3)
    assert specs["layers.0.ffn.experts.0.w2.weight"].shape == (128, 35)
    assert specs["layers.0.ffn.experts.0.w2.scale"].shape == (128, 3)


def test_a_model_without_drafts_has_no_draft_tensors() -> None:
    specs = schema(changed(tiny_config(), "dspark", num_stages=0))
    assert not any(spec.scope is Scope.DRAFT for spec in specs.values())


def test_a_single_draft_stage_has_both_ends() -> None:
    specs = schema(changed(tiny_config(), "dspark", num_stages=1))
    assert {"mtp.0.main_proj.weight", "mtp.0.norm.weight", "mtp.0.markov_head.embed.weight"} <= specs.keys()


def test_the_fold_weights_exist_only_where_two_tokens_share_a_row() -> None:
    specs = schema(tiny_config())  # sources 2 and 4 have ratio 2, source 6 ratio 1
    found = [name for name in specs if "compressor.wgate" in name]
    assert found == ["layers.2.attn.compressor.wgate.weight", "layers.4.attn.compressor.wgate.weight"]
