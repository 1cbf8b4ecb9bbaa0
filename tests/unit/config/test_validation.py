import dataclasses
from typing import Any

import pytest

from flash41.config.huggingface import config_from_dict
from flash41.config.keys import ROPE_SCALING, TEXT, VISION, keys
from flash41.config.validation import model_faults
from flash41.errors import ConfigError
from helpers.config_documents import patched, release_config, tiny_config

SIZES = [(section.label(key.name), key.above) for section in (TEXT, ROPE_SCALING, VISION) for key in keys(section)]
POSITIVE = {
    "hidden_size", "vocab_size", "num_hidden_layers", "num_attention_heads", "head_dim", "q_lora_rank", "o_lora_rank",
    "o_groups", "index_n_heads", "index_head_dim", "index_topk", "sliding_window", "moe_intermediate_size",
    "n_routed_experts", "num_experts_per_tok", "hc_mult", "hc_sinkhorn_iters", "max_position_embeddings",
    "rms_norm_eps", "hc_eps",
}  # fmt: skip


def refusal(patch: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as caught:
        config_from_dict(patched(patch))
    return str(caught.value)


def test_every_size_the_specification_names_has_a_lower_bound() -> None:
    bounded = {label.removeprefix("text_config.") for label, above in SIZES if above is not None}
    assert bounded >= POSITIVE


@pytest.mark.parametrize(("label", "above"), [size for size in SIZES if size[1] is not None])
def test_a_size_at_its_bound_is_refused_by_name(label: str, above: int) -> None:
    for value in (above, above - 1, -(10**6)):
        message = refusal({label: value})
        shown = float(value) if f"{label}: got {value}, " not in message else value
        assert f"{label}: got {shown}, expected > {above}" in message


@pytest.mark.parametrize(
    ("patch", "message"),
    [
        (
            {"text_config.o_groups": 7},
            "num_attention_heads: got 64, expected a multiple of o_groups 7",
        ),
        ({"text_config.num_experts_per_tok": 385}, "num_experts_per_tok: got 385, expected <= n_routed_experts 384"),
        (
            {"text_config.qk_rope_head_dim": 63},
            "qk_rope_head_dim: got 63, expected even, > 0 and <= 128 (rotary channels must fit both heads)",
        ),
        (
            {"text_config.qk_rope_head_dim": 0},
            "qk_rope_head_dim: got 0, expected even, > 0 and <= 128 (rotary channels must fit both heads)",
        ),
        (
            {"text_config.qk_rope_head_dim": 130},
            "qk_rope_head_dim: got 130, expected even, > 0 and <= 128 (rotary channels must fit both heads)",
        ),
        (
            {"text_config.n_routed_experts": 10**9},
            "tensors of experts and vision blocks: got 240000002560, expected <= 2000000 (layers x experts x 6)",
        ),
        ({"text_config.vocab_size": 10**15}, "vocab_size: got 1000000000000000, expected <= 16777216"),
        (
            {"vision_config.num_hidden_layers": 10**9},
            "tensors of experts and vision blocks: got 8000094464, expected <= 2000000 (layers x experts x 6)",
        ),
        ({"text_config.num_nextn_predict_layers": -1}, "num_nextn_predict_layers: got -1, expected >= 0"),
        (
            {"text_config.engram_num_embeddings": [384006168]},
            "engram_num_embeddings: got 1 sizes, expected 2 (one per entry of engram_layer_ids)",
        ),
        (
            {"text_config.engram_num_embeddings": [384006168, 0]},
            "engram_num_embeddings[1]: got 0, expected > 0",
        ),
        (
            {"text_config.engram_num_embeddings": [384006168, 384016681]},
            "engram_num_embeddings[1]: got 384016681, expected 384016682 (sum of 24 primes from engram_vocab_size)",
        ),
        ({"text_config.head_dim": 500}, "head_dim: got 500, expected a positive multiple of 32"),
        ({"text_config.index_head_dim": 80}, "index_head_dim: got 80, expected a positive multiple of 32"),
        ({"text_config.hidden_size": 5121}, "hidden_size: got 5121, expected a positive multiple of 32"),
        ({"text_config.q_lora_rank": 1288}, "q_lora_rank: got 1288, expected a positive multiple of 32"),
        ({"text_config.o_lora_rank": 1000}, "o_lora_rank: got 1000, expected a positive multiple of 32"),
        (
            {"text_config.moe_intermediate_size": 2310},
            "moe_intermediate_size: got 2310, expected a positive multiple of 32",
        ),
        ({"text_config.engram_head_dim": 264}, "engram_head_dim: got 264, expected a positive multiple of 32"),
        (
            {"vision_config.hidden_size": 1000},
            "vision_config.hidden_size: got 1000, expected a multiple of 4 * num_attention_heads 16",
        ),
        (
            {"text_config.rope_scaling.beta_slow": 32},
            "text_config.rope_scaling.beta_fast: got 32.0, expected > beta_slow 32.0 (the ramp has a direction)",
        ),
    ],
)
def test_each_rule_says_what_it_found_and_expected(patch: dict[str, Any], message: str) -> None:
    assert refusal(patch) == message


def test_all_broken_rules_are_listed_together() -> None:
    message = refusal(
        {
            "text_config.num_experts_per_tok": 400,
            "text_config.qk_rope_head_dim": 7,
            "text_config.engram_num_embeddings": [1, 2],
        }
    )
    assert message.startswith("config.json: 4 faults\n")
    for part in ("num_experts_per_tok", "qk_rope_head_dim", "engram_num_embeddings[0]", "engram_num_embeddings[1]"):
        assert part in message


def test_a_zero_divisor_is_reported_and_never_divided_by() -> None:
    message = refusal({"text_config.o_groups": 0, "vision_config.num_attention_heads": 0})
    assert "text_config.o_groups: got 0, expected > 0" in message
    assert "vision_config.num_attention_heads: got 0, expected > 0" in message


def test_an_absurd_number_of_hash_columns_is_refused_before_any_prime_is_sought() -> None:
    message = refusal({"text_config.engram_n_heads": 10**12})
    assert message.startswith("engram hash columns: got 6000000000000, expected <= 4096")


def test_a_model_without_engram_or_drafts_is_accepted() -> None:
    config = config_from_dict(
        patched(
            {
                "text_config.engram_layer_ids": [],
                "text_config.engram_num_embeddings": [],
                "text_config.num_nextn_predict_layers": 0,
                "text_config.compress_ratios": [0, 0, *[2] * 18, *[1] * 20],
            }
        )
    )
    assert config.engram.table_rows == ()
    assert config.dspark.num_stages == 0


def test_release_and_golden_checkpoint_break_no_rule() -> None:
    assert model_faults(release_config()) == []
    assert model_faults(tiny_config()) == []


def test_faults_of_records_made_in_code_are_found_too() -> None:
    config = release_config()
    broken = dataclasses.replace(config, mhc=dataclasses.replace(config.mhc, streams=0))
    assert model_faults(broken) == ["text_config.hc_mult: got 0, expected > 0"]
