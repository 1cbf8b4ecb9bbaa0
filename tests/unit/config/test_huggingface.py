import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flash41.config.architecture import ModelConfig
from flash41.config.huggingface import config_from_dict, config_to_dict, read_config
from flash41.errors import ConfigError
from helpers.config_documents import ABSENT, DATA, patched, release_config, release_text, tiny_config, tiny_text


def refusal(patch: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as caught:
        config_from_dict(patched(patch))
    return str(caught.value)


@pytest.mark.parametrize("text", [release_text(), tiny_text()], ids=["release", "tiny"])
def test_writing_what_was_read_gives_the_same_document_in_the_same_order(text: str) -> None:
    document = json.loads(text)
    assert json.dumps(config_to_dict(config_from_dict(document))) == json.dumps(document)


def test_reading_what_was_written_gives_the_same_records() -> None:
    for config in (release_config(), tiny_config()):
        assert config_from_dict(config_to_dict(config)) == config


def test_a_file_and_its_directory_read_alike(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(tiny_text(), encoding="utf-8")
    assert read_config(tmp_path) == read_config(tmp_path / "config.json") == read_config(DATA / "tiny-a.json")


def test_an_empty_directory_is_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"config\.json: expected a file"):
        read_config(tmp_path)


def test_the_release_lands_in_the_records() -> None:
    config = release_config()
    assert (config.vocab_size, config.hidden_size, config.num_layers) == (129280, 5120, 40)
    assert (config.rms_norm_eps, config.max_positions, config.initializer_range) == (1e-20, 1048576, 0.02)
    tokens = config.tokens
    assert (tokens.bos, tokens.eos, tokens.pad, tokens.image) == (0, 1, 2, 129264)
    assert (config.rope.head_dim, config.rope.theta, config.rope.compress_theta) == (64, 10000.0, 160000.0)
    assert (config.rope.yarn_factor, config.rope.yarn_beta_fast, config.rope.yarn_beta_slow) == (16.0, 32.0, 1.0)
    assert config.rope.yarn_original_positions == 65536
    assert (config.attention.num_heads, config.attention.head_dim, config.attention.window) == (64, 512, 128)
    assert (config.indexer.num_heads, config.indexer.head_dim, config.indexer.topk) == (32, 128, 512)
    assert (config.indexer.candidate_source_layer_id, config.indexer.candidate_blocks) == (20, 2048)
    assert (config.moe.num_experts, config.moe.num_experts_per_token, config.moe.route_scale) == (384, 6, 1.5)
    assert (config.mhc.streams, config.mhc.sinkhorn_iterations, config.mhc.eps) == (4, 20, 1e-6)
    assert (config.engram.num_columns, config.engram.width) == (24, 6144)
    assert (config.dspark.num_stages, config.dspark.block_size, config.dspark.num_experts) == (3, 5, 128)
    assert (config.vision.num_layers, config.vision.patch_size, config.vision.max_wh_ratio) == (32, 14, None)
    assert isinstance(config.rope.theta, float)


def test_minus_one_means_no_candidate_source() -> None:
    config = config_from_dict(patched({"text_config.candidate_source_layer_id": -1}))
    assert config.indexer.candidate_source_layer_id is None
    written = config_to_dict(config)["text_config"]
    assert isinstance(written, dict)
    assert written["candidate_source_layer_id"] == -1


def test_fractions_survive_where_the_release_has_whole_numbers() -> None:
    document = patched({"text_config.rope_theta": 10000.5, "vision_config.max_wh_ratio": 8})
    written = config_to_dict(config_from_dict(document))
    assert written == document


@pytest.mark.parametrize(
    ("patch", "message"),
    [
        # Q1 to Q5
        (
            {"quantization_config.quant_method": "awq"},
            "quantization_config.quant_method: got 'awq', expected 'fp8' (only the native FP8 checkpoint can be read)",
        ),
        (
            {"quantization_config.weight_block_size": [128, 128]},
            "quantization_config.weight_block_size: got [128, 128], expected [32, 32] "
            "(dense weights carry one scale per 32x32 tile)",
        ),
        (
            {"quantization_config.scale_fmt": "fp32"},
            "quantization_config.scale_fmt: got 'fp32', expected 'ue8m0' (dense scales are powers of two)",
        ),
        (
            {"quantization_config.activation_scheme": "static"},
            "quantization_config.activation_scheme: got 'static', expected 'dynamic' "
            "(activations are quantised per 32 channels at run time)",
        ),
        (
            {"quantization_config.expert_dtype": "fp8"},
            "quantization_config.expert_dtype: got 'fp8', expected 'fp4' "
            "(routed experts are the packed FP4 of the checkpoint)",
        ),
        # N1 to N4
        (
            {"model_type": "deepseek_v41x"},
            "model_type: got 'deepseek_v41x', expected 'deepseek_v41' "
            "(DeepSeek-V4 has other layers and other tensors; only V4.1 can be read)",
        ),
        ({"model_type": "llama"}, "model_type: got 'llama', expected 'deepseek_v41'"),
        ({"model_type": None}, "model_type: got None, expected 'deepseek_v41'"),
        (
            {"text_config.model_type": "deepseek_v41"},
            "text_config.model_type: got 'deepseek_v41', expected 'deepseek_v41_text'",
        ),
        ({"architectures": []}, "architectures: got [], expected ['DeepseekV41ForCausalLM']"),
        (
            {"architectures": ["DeepseekV41ForCausalLM", "Other"]},
            "architectures: got ['DeepseekV41ForCausalLM', 'Other'], expected ['DeepseekV41ForCausalLM']",
        ),
        ({"vision_config": ABSENT}, "vision_config: got None, expected a non-empty mapping"),
        ({"vision_config": {}}, "vision_config: got {}, expected a non-empty mapping"),
        ({"text_config": []}, "text_config: got [], expected a non-empty mapping"),
        # N6, N7
        (
            {"text_config.num_key_value_heads": 8},
            "num_key_value_heads: got 8, expected 1 (one latent row per token serves all heads)",
        ),
        ({"text_config.n_shared_experts": 2}, "n_shared_experts: got 2, expected 1"),
        # N16
        ({"rope_local": 1, "zeta": 2}, "config.json: unknown keys ['rope_local', 'zeta']"),
        ({"bos_token_id": ABSENT, "dtype": ABSENT}, "config.json: missing keys ['dtype', 'bos_token_id']"),
        ({"text_config.kv_lora_rank": 512}, "text_config: unknown keys ['kv_lora_rank']"),
        ({"text_config.hc_eps": ABSENT}, "text_config: missing keys ['hc_eps']"),
        ({"text_config.rope_scaling.mscale": 1.0}, "text_config.rope_scaling: unknown keys ['mscale']"),
        (
            {"text_config.rope_scaling.attention_factor": 1.0, "text_config.rope_scaling.mscale_all_dim": 0},
            "text_config.rope_scaling: unknown keys ['attention_factor', 'mscale_all_dim']",
        ),
        ({"vision_config.num_channels": 3}, "vision_config: unknown keys ['num_channels']"),
        ({"quantization_config.scale_fmt": ABSENT}, "quantization_config: missing keys ['scale_fmt']"),
        # Values the engine relies on
        (
            {"text_config.scoring_func": "softmax"},
            "text_config.scoring_func: got 'softmax', expected 'sqrtsoftplus' (the engine computes only that)",
        ),
        (
            {"text_config.norm_topk_prob": 1},
            "text_config.norm_topk_prob: got 1, expected True (the engine computes only that)",
        ),
        (
            {"text_config.attention_bias": 0},
            "text_config.attention_bias: got 0, expected False (the engine computes only that)",
        ),
        # Types
        ({"text_config.hidden_size": "5120"}, "text_config.hidden_size: got '5120', expected an integer"),
        ({"text_config.hidden_size": 5120.0}, "text_config.hidden_size: got 5120.0, expected an integer"),
        (
            {"text_config.num_nextn_predict_layers": True},
            "text_config.num_nextn_predict_layers: got True, expected an integer",
        ),
        ({"text_config.swiglu_limit": False}, "text_config.swiglu_limit: got False, expected a number"),
        ({"text_config.hc_eps": float("inf")}, "text_config.hc_eps: got inf, expected a number"),
        ({"text_config.hc_eps": float("nan")}, "text_config.hc_eps: got nan, expected a number"),
        ({"text_config.rope_theta": 10**400}, f"text_config.rope_theta: got {10**400}, expected a number"),
        ({"text_config.vocab_size": 2**63}, f"text_config.vocab_size: got {2**63}, expected an integer"),
        ({"text_config.compress_ratios": "00"}, "text_config.compress_ratios: got '00', expected a list"),
        (
            {"text_config.engram_num_embeddings": [384006168, "384016682"]},
            "text_config.engram_num_embeddings[1]: got '384016682', expected an integer",
        ),
        (
            {"text_config.candidate_source_layer_id": None},
            "text_config.candidate_source_layer_id: got None, expected an integer, -1 for none",
        ),
        ({"vision_config.max_wh_ratio": "wide"}, "vision_config.max_wh_ratio: got 'wide', expected a number or null"),
        ({"transformers_version": 5}, "transformers_version: got 5, expected a string"),
        # Copies of root values
        (
            {"text_config.eos_token_id": 5},
            "text_config.eos_token_id: got 5, expected 1 (the value at the root)",
        ),
    ],
    ids=lambda value: str(value)[:50],
)
def test_each_fault_of_the_document_has_its_wording(patch: dict[str, Any], message: str) -> None:
    assert refusal(patch) == message


@pytest.mark.parametrize(
    "name",
    ["attention_dropout", "hidden_act", "use_cache", "tie_word_embeddings", "topk_method", "rope_scaling.rope_type"],
)
def test_a_value_the_engine_does_not_compute_is_refused_by_name(name: str) -> None:
    assert refusal({f"text_config.{name}": "other"}).startswith(f"text_config.{name}: got 'other', expected ")


@pytest.mark.parametrize("older", ["deepseek_v4", "deepseek_v4_flash"])
def test_a_v4_configuration_gets_one_line_that_says_so(older: str) -> None:
    message = refusal({"model_type": older, "compress_ratios": 1, "text_config": ABSENT})
    assert message.startswith(f"model_type: got {older!r}, expected 'deepseek_v41' (DeepSeek-V4")
    assert "\n" not in message


def test_an_empty_document_lists_everything_that_is_missing() -> None:
    with pytest.raises(ConfigError) as caught:
        config_from_dict({})
    message = str(caught.value)
    assert "config.json: missing keys ['architectures', 'model_type', 'dtype', 'bos_token_id'," in message
    for section in ("quantization_config", "text_config", "vision_config"):
        assert f"{section}: got None, expected a non-empty mapping" in message


def test_all_faults_of_a_document_come_in_one_error() -> None:
    message = refusal(
        {
            "quantization_config.scale_fmt": "fp32",
            "text_config.head_dim": "512",
            "text_config.surprise": 1,
            "vision_config.patch_size": ABSENT,
        }
    )
    assert message.startswith("config.json: 4 faults\n")
    for part in ("scale_fmt: got 'fp32'", "head_dim: got '512'", "unknown keys ['surprise']", "['patch_size']"):
        assert part in message


def test_optional_keys_change_nothing() -> None:
    document = patched(
        {
            "transformers_version": ABSENT,
            "_name_or_path": "somewhere",
            "text_config.engram_kernel_size": 4,
            "text_config.engram_seed": 10007,
        }
    )
    assert config_from_dict(document) == release_config()


def test_copies_of_root_values_are_accepted_where_they_agree() -> None:
    root = json.loads(release_text())
    names = ("dtype", "bos_token_id", "eos_token_id", "pad_token_id", "image_token_id", "quantization_config")
    assert config_from_dict(patched({f"text_config.{name}": root[name] for name in names})) == release_config()
    other = root["quantization_config"] | {"expert_dtype": "fp8"}
    assert "the value at the root" in refusal({"text_config.quantization_config": other})


def test_tuples_are_read_as_lists() -> None:
    patch = {"quantization_config.weight_block_size": (32, 32), "text_config.kv_source_layer_ids": (2, 8, 14, 20)}
    assert config_from_dict(patched(patch)) == release_config()


def leaf_paths(document: dict[str, Any], prefix: str = "") -> list[str]:
    paths: list[str] = []
    for key, value in document.items():
        paths.append(f"{prefix}{key}")
        if isinstance(value, dict):
            paths += leaf_paths(value, f"{prefix}{key}.")
    return paths


PATHS = leaf_paths(json.loads(release_text()))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=8,
)


@pytest.mark.parametrize("path", [path for path in PATHS if path != "transformers_version"])
def test_every_key_is_required(path: str) -> None:
    name = path.rpartition(".")[2]
    message = refusal({path: ABSENT})
    assert f"missing keys ['{name}']" in message or f"{path}: got None, expected a non-empty mapping" in message


@given(st.dictionaries(st.sampled_from(PATHS), JSON, min_size=1, max_size=3))
@settings(deadline=None, max_examples=300)
def test_fuzzed_values_give_a_config_or_a_config_error(patch: dict[str, Any]) -> None:
    # Outer keys first would remove the place of inner ones.
    ordered = dict(sorted(patch.items(), key=lambda item: -item[0].count(".")))
    try:
        config = config_from_dict(patched(ordered))
    except ConfigError:
        return
    assert isinstance(config, ModelConfig)
    assert config_from_dict(config_to_dict(config)) == config


@given(JSON.filter(lambda value: isinstance(value, dict)))
@settings(deadline=None, max_examples=150)
def test_arbitrary_documents_raise_nothing_but_a_config_error(document: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        config_from_dict(document)


@given(st.integers(0, len(tiny_text()) - 1), st.characters(codec="utf-8"))
@settings(deadline=None, max_examples=200)
def test_one_changed_character_of_a_file_gives_a_config_or_a_config_error(
    tmp_path_factory: pytest.TempPathFactory, index: int, character: str
) -> None:
    text = tiny_text()
    path = tmp_path_factory.getbasetemp() / "mutated.json"
    path.write_text(text[:index] + character + text[index + 1 :], encoding="utf-8")
    try:
        config = read_config(path)
    except ConfigError:
        return
    assert isinstance(config, ModelConfig)
