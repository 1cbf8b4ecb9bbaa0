from pathlib import Path

import pytest
import torch

from flash41.checkpoint.directory import INDEX_FILE
from flash41.checkpoint.faults import FaultKind, FaultyCheckpointError
from flash41.checkpoint.loader import Checkpoint, open_checkpoint
from flash41.checkpoint.schema import schema
from flash41.checkpoint.stored import Scope
from flash41.errors import CheckpointError, ConfigError
from flash41.numerics.scaled import ElementFormat
from helpers.checkpoints import TINY, edit_header, edit_json, set_byte, tiny_copy
from helpers.config_documents import tiny_config

FIRST = "model-00001-of-00005.safetensors"


@pytest.fixture(scope="module")
def tiny() -> Checkpoint:
    return open_checkpoint(TINY)


def refusal(directory: Path) -> FaultyCheckpointError:
    with pytest.raises(FaultyCheckpointError) as caught:
        open_checkpoint(directory)
    return caught.value


def rename(directory: Path, old: str, new: str) -> None:
    """Renames a tensor in header and index alike."""
    for path in directory.glob("*.safetensors"):
        edit_header(path, lambda h: h.update({new: h.pop(old)}) if old in h else None)
    edit_json(directory / INDEX_FILE, lambda index: index["weight_map"].update({new: index["weight_map"].pop(old)}))


def test_the_golden_checkpoint_opens_with_its_config(tiny: Checkpoint) -> None:
    assert tiny.config == tiny_config()
    assert tiny.directory == TINY
    assert tiny.specs == schema(tiny_config())


def test_dense_weights_are_e4m3_in_tiles(tiny: Checkpoint) -> None:
    weight = tiny.quantized("layers.0.attn.wq_b")
    assert (weight.element, weight.group, weight.shape) == (ElementFormat.E4M3, (32, 32), (256, 64))
    shared = tiny.quantized("mtp.1.ffn.shared_experts.w2")
    assert (shared.element, shared.group) == (ElementFormat.E4M3, (32, 32))


def test_experts_are_packed_fp4_with_a_scale_per_run(tiny: Checkpoint) -> None:
    weight = tiny.quantized("layers.3.ffn.experts.15.w2")
    assert (weight.element, weight.group, weight.shape) == (ElementFormat.E2M1, (1, 32), (128, 64))
    assert weight.codes.shape == (128, 32)


def test_the_low_nibble_is_the_even_channel(tmp_path: Path) -> None:
    directory = tiny_copy(tmp_path)
    set_byte(directory, "layers.0.ffn.experts.0.w1.weight", 0, 0x72)  # codes 2 (1.0) and 7 (6.0)
    set_byte(directory, "layers.0.ffn.experts.0.w1.scale", 0, 127)
    weight = open_checkpoint(directory).quantized("layers.0.ffn.experts.0.w1")
    assert weight.dequantize()[0, :2].tolist() == [1.0, 6.0]


@pytest.mark.parametrize(("byte", "value"), [(0, 2.0**-127), (120, 2.0**-7), (127, 1.0), (254, 2.0**127)])
def test_a_scale_byte_is_an_exponent(tmp_path: Path, byte: int, value: float) -> None:
    directory = tiny_copy(tmp_path)
    set_byte(directory, "layers.0.attn.wq_a.scale", 0, byte)
    weight = open_checkpoint(directory).quantized("layers.0.attn.wq_a")
    assert weight.scale_values(torch.float64)[0, 0].item() == value


def test_tables_are_raw_bytes(tiny: Checkpoint) -> None:
    codes, scales = tiny.engram_table(4)
    assert (codes.shape, scales.shape) == ((4944, 32), (4944, 1))
    assert (codes.dtype, scales.dtype) == (torch.uint8, torch.uint8)


def test_missing_unexpected_and_wrong_are_listed_at_once(tmp_path: Path) -> None:
    directory = tiny_copy(tmp_path)
    rename(directory, "norm.weight", "normal.weight")
    rename(directory, "layers.0.attn.attn_sink", "layers.0.attn.sink")
    edit_header(directory / FIRST, lambda h: h["layers.0.attn_norm.weight"].update(shape=[2, 64]))
    edit_header(directory / FIRST, lambda h: h["layers.0.attn.wq_a.weight"].update(dtype="I8"))
    error = refusal(directory)
    message = error.faults[0].message
    assert message.startswith("checkpoint: missing [layers.0.attn.attn_sink, norm.weight]; unexpected [")
    assert "layers.0.attn.sink" in message
    assert "normal.weight" in message
    assert "layers.0.attn_norm.weight: got BF16 [2, 64], expected BF16 [128]" in message
    assert "layers.0.attn.wq_a.weight: got I8 [64, 128], expected F8_E4M3 [64, 128]" in message
    assert len(error.faults[0].names) == 6


def test_long_lists_are_counted_in_the_text_and_whole_in_the_error(tmp_path: Path) -> None:
    directory = tiny_copy(tmp_path)
    edit_json(directory / "config.json", lambda config: config["text_config"].update(n_routed_experts=18))
    error = refusal(directory)
    missing = [name for name in error.faults[0].names if ".experts.16." in name or ".experts.17." in name]
    assert len(missing) == 10 * 2 * 6
    assert "... 120 in all" in str(error)


def test_tensors_that_swapped_names_are_both_named(tmp_path: Path) -> None:
    directory = tiny_copy(tmp_path)
    one, other = "layers.0.attn.wq_a.weight", "layers.0.attn.wo_a.weight"
    edit_header(directory / FIRST, lambda h: h.update({one: h[other], other: h[one]}))
    names = refusal(directory).faults[0].names
    assert [name.split(":")[0] for name in names] == [one, other]


def test_a_missing_shard_does_not_bury_the_cause_under_its_tensors(tmp_path: Path) -> None:
    directory = tiny_copy(tmp_path)
    (directory / FIRST).unlink()
    assert [fault.kind for fault in refusal(directory).faults] == [FaultKind.SHARD]


def test_a_nan_scale_of_a_dense_weight_is_refused_at_open(tmp_path: Path) -> None:
    directory = tiny_copy(tmp_path)
    set_byte(directory, "layers.2.attn.wo_b.scale", 5, 255)
    set_byte(directory, "mtp.0.main_proj.scale", 0, 255)
    error = refusal(directory)
    width = schema(tiny_config())["layers.2.attn.wo_b.scale"].shape[1]
    assert f"layers.2.attn.wo_b.scale: scale byte 255 (NaN) at {list(divmod(5, width))}" in str(error)
    assert "mtp.0.main_proj.scale: scale byte 255 (NaN) at [0, 0]" in str(error)


def test_a_nan_scale_of_another_scope_is_nobodys_business(tmp_path: Path) -> None:
    directory = tiny_copy(tmp_path)
    set_byte(directory, "mtp.0.main_proj.scale", 0, 255)
    open_checkpoint(directory, {Scope.BACKBONE})


@pytest.mark.parametrize("name", ["layers.5.ffn.experts.7.w3.scale", "layers.4.engram.embed.scale"])
def test_a_small_checkpoint_has_all_its_scales_looked_at_when_it_opens(name: str, tmp_path: Path) -> None:
    directory = tiny_copy(tmp_path)
    set_byte(directory, name, 9, 255)
    assert f"{name}: scale byte 255 (NaN) at {list(divmod(9, schema(tiny_config())[name].shape[1]))}" in str(
        refusal(directory)
    )


def test_a_nan_scale_of_an_expert_of_a_large_one_is_refused_at_its_first_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flash41.checkpoint.loader.MOST_BYTES_AT_OPEN", 1000)
    directory = tiny_copy(tmp_path)
    set_byte(directory, "layers.5.ffn.experts.7.w3.scale", 9, 255)
    checkpoint = open_checkpoint(directory)
    checkpoint.quantized("layers.5.ffn.experts.6.w3")
    with pytest.raises(FaultyCheckpointError, match=r"experts\.7\.w3\.scale: scale byte 255 \(NaN\) at \[2, 1\]"):
        checkpoint.quantized("layers.5.ffn.experts.7.w3")


def test_a_code_of_255_is_no_nan_scale(tmp_path: Path) -> None:
    directory = tiny_copy(tmp_path)
    set_byte(directory, "layers.0.ffn.experts.0.w1.weight", 0, 255)
    open_checkpoint(directory).quantized("layers.0.ffn.experts.0.w1")


def test_a_config_of_v4_is_refused(tmp_path: Path) -> None:
    directory = tiny_copy(tmp_path)
    edit_json(directory / "config.json", lambda config: config.update(model_type="deepseek_v4"))
    with pytest.raises(ConfigError, match="model_type: got 'deepseek_v4', expected 'deepseek_v41'"):
        open_checkpoint(directory)


def test_what_is_no_checkpoint_is_said_before_the_config_is_read(tmp_path: Path) -> None:
    assert "config.json: got no such file" in str(refusal(tmp_path))


def test_unknown_names_and_closed_scopes_are_refused() -> None:
    checkpoint = open_checkpoint(TINY, {Scope.BACKBONE})
    with pytest.raises(CheckpointError, match="expected a name of the schema"):
        checkpoint.tensor("layers.0.attn.wq_a")
    with pytest.raises(CheckpointError, match=r"scope of mtp\.2\.norm\.weight: got 'draft'"):
        checkpoint.tensor("mtp.2.norm.weight")
    with pytest.raises(CheckpointError, match="prefix of the schema"):
        checkpoint.claim("layers.0.ffn.expert")


def test_every_tensor_of_a_scope_must_be_bound() -> None:
    checkpoint = open_checkpoint(TINY)
    names = [name for name, spec in checkpoint.specs.items() if spec.scope is Scope.DRAFT]
    # The traps of other loaders: a draft's shared experts, the bias whose name begins like another, Markov's tables.
    left = {
        "mtp.2.ffn.gate.bias_vl",
        "mtp.1.ffn.shared_experts.w1.weight",
        "mtp.1.ffn.shared_experts.w1.scale",
        "mtp.2.markov_head.head.weight",
        "mtp.0.ffn.experts.3.w1.scale",
    }
    for name in names:
        if name not in left:
            checkpoint.tensor(name)
            checkpoint.tensor(name)  # twice is fine
    with pytest.raises(FaultyCheckpointError) as caught:
        checkpoint.assert_all_bound(Scope.DRAFT)
    experts, others = caught.value.faults
    assert experts.message == "experts: unfilled [mtp.0.ffn.experts.3.w1.scale]"
    assert set(others.names) == left - {"mtp.0.ffn.experts.3.w1.scale"}
    checkpoint.quantized("mtp.1.ffn.shared_experts.w1")
    checkpoint.claim("mtp.0.ffn.experts")
    for name in ("mtp.2.ffn.gate.bias_vl", "mtp.2.markov_head.head.weight"):
        checkpoint.tensor(name)
    checkpoint.assert_all_bound(Scope.DRAFT)
    with pytest.raises(FaultyCheckpointError, match="unrouted tensors"):
        checkpoint.assert_all_bound(Scope.VISION)


def test_claiming_a_prefix_takes_whole_path_segments_only() -> None:
    checkpoint = open_checkpoint(TINY)
    checkpoint.claim("layers.1")
    with pytest.raises(FaultyCheckpointError) as caught:
        checkpoint.assert_all_bound(Scope.BACKBONE)
    names = {name for fault in caught.value.faults for name in fault.names}
    assert not any(name.startswith("layers.1.") for name in names)
    assert "layers.0.attn_norm.weight" in names


def test_a_shard_that_changes_after_opening_is_noticed(tmp_path: Path) -> None:
    directory = tiny_copy(tmp_path)
    checkpoint = open_checkpoint(directory)
    checkpoint.check_unchanged()
    set_byte(directory, "embed.weight", 0, 1)
    with pytest.raises(FaultyCheckpointError, match="changed while in use"):
        checkpoint.check_unchanged()
