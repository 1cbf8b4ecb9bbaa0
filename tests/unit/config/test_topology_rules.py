from typing import Any

import pytest

from flash41.config.huggingface import config_from_dict
from flash41.config.topology_rules import check_topology, largest_at_or_below, owner_faults, topology_faults
from flash41.errors import ConfigError
from helpers.config_documents import patched, release_config, text_patched, topology_vectors

RATIOS = [0, 0, *[2] * 18, *[1] * 20, 0, 0, 0]

# Wording by rule id; a message belongs to a rule when it has the form of that rule and of no other.
FORMS = {
    "T1": r"compress_ratios: got \d+ entries, expected \d+ \(backbone \+ draft\)",
    "T2": r"compress_ratios\[\d+\]: got .+, expected 0, 1 or 2",
    "T3": r"compress_ratios\[\d+\]: got .+, expected 0 \(draft layer \d+ must be window-only\)",
    "T4": r"\w+_layer_ids(\[\d+\]: got .+, expected an int in \[0, \d+\)"
    r"|: got .+, expected strictly ascending without duplicates)",
    "T5": r"kv_source_layer_ids: layer \d+ holds compressed KV but nobody scores it, "
    r"expected it in index_source_layer_ids",
    "T6": r"index_source_layer_ids: layer \d+ is window-only, expected ratio 1 or 2",
    "T7": r"candidate_source_layer_id: got .+, expected -1 or an index source",
    "T8": r"candidate_topk_blocks / candidate_block_size: got .+ / .+, expected > 0",
    "T9": r"candidate blocks: got \d+ guaranteed rows \(\d+ x \d+ - \d+\), expected >= index_topk \d+",
    "T10": r"layer \d+: no KV owner of ratio \d at or before it",
    "T12": r"layer \d+: KV owner \d+ differs from the candidate source's owner \d+",
}


def refusal(patch: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as caught:
        config_from_dict(text_patched(patch))
    return str(caught.value)


@pytest.mark.parametrize("case", topology_vectors()["invalid"], ids=lambda case: f"{case['rule']} {case['patch']}"[:60])
def test_invalid_patches_are_refused_by_the_rule_the_vectors_name(case: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"^{FORMS[case['rule']]}$"):
        config_from_dict(text_patched(case["patch"]))


@pytest.mark.parametrize(
    ("patch", "message"),
    [
        ({"compress_ratios": RATIOS[:-1]}, "compress_ratios: got 42 entries, expected 43 (backbone + draft)"),
        ({"compress_ratios": []}, "compress_ratios: got 0 entries, expected 43 (backbone + draft)"),
        ({"compress_ratios": [0, 0, 4, *RATIOS[3:]]}, "compress_ratios[2]: got 4, expected 0, 1 or 2"),
        ({"compress_ratios": [0, False, *RATIOS[2:]]}, "compress_ratios[1]: got False, expected 0, 1 or 2"),
        ({"compress_ratios": [0, 0, 2.0, *RATIOS[3:]]}, "compress_ratios[2]: got 2.0, expected 0, 1 or 2"),
        ({"compress_ratios": [0, 0, None, *RATIOS[3:]]}, "compress_ratios[2]: got None, expected 0, 1 or 2"),
        (
            {"compress_ratios": [*RATIOS[:-1], 1]},
            "compress_ratios[42]: got 1, expected 0 (draft layer 2 must be window-only)",
        ),
        ({"kv_source_layer_ids": [2, 8, 14, 40]}, "kv_source_layer_ids[3]: got 40, expected an int in [0, 40)"),
        ({"kv_source_layer_ids": [-1, 8, 14, 20]}, "kv_source_layer_ids[0]: got -1, expected an int in [0, 40)"),
        ({"engram_layer_ids": [True, 14]}, "engram_layer_ids[0]: got True, expected an int in [0, 40)"),
        ({"engram_layer_ids": [1, 14.0]}, "engram_layer_ids[1]: got 14.0, expected an int in [0, 40)"),
        (
            {"engram_layer_ids": [14, 14]},
            "engram_layer_ids: got [14, 14], expected strictly ascending without duplicates",
        ),
        (
            {"index_source_layer_ids": [2, 8, 20]},
            "kv_source_layer_ids: layer 14 holds compressed KV but nobody scores it, "
            "expected it in index_source_layer_ids",
        ),
        (
            {"index_source_layer_ids": [0, 2, 8, 14, 20]},
            "index_source_layer_ids: layer 0 is window-only, expected ratio 1 or 2",
        ),
        ({"candidate_source_layer_id": 21}, "candidate_source_layer_id: got 21, expected -1 or an index source"),
        ({"candidate_source_layer_id": -2}, "candidate_source_layer_id: got -2, expected -1 or an index source"),
        (
            {"candidate_block_size": -8},
            "candidate_topk_blocks / candidate_block_size: got 2048 / -8, expected > 0",
        ),
        (
            {"candidate_topk_blocks": 64},
            "candidate blocks: got 505 guaranteed rows (64 x 8 - 7), expected >= index_topk 512",
        ),
        ({"kv_source_layer_ids": [8, 14, 20]}, "layer 2: no KV owner of ratio 2 at or before it"),
        ({"kv_source_layer_ids": [2, 8, 14]}, "layer 20: no KV owner of ratio 1 at or before it"),
        (
            {"dspark_target_layer_ids": [37, 37, 39]},
            "dspark_target_layer_ids[1]: got 37, expected a backbone layer without Engram, ascending",
        ),
        (
            {"dspark_target_layer_ids": [14, 38]},
            "dspark_target_layer_ids[0]: got 14, expected a backbone layer without Engram, ascending",
        ),
        (
            {"dspark_target_layer_ids": [37, 38, 40]},
            "dspark_target_layer_ids[2]: got 40, expected a backbone layer without Engram, ascending",
        ),
        (
            {"dspark_target_layer_ids": [37, "38"]},
            "dspark_target_layer_ids[1]: got '38', expected a backbone layer without Engram, ascending",
        ),
        (
            {"dspark_target_layer_ids": []},
            "dspark_target_layer_ids: got [], expected at least one layer (the first draft stage reads it)",
        ),
        ({"dspark_noise_token_id": 129280}, "dspark_noise_token_id: got 129280, expected < vocab_size 129280"),
        (
            {"engram_pad_token_id": -1},
            "engram_pad_token_id: got -1, expected < vocab_size 129280 (and not negative)",
        ),
        (
            {"dspark_num_experts_per_tok": 129},
            "dspark_num_experts_per_tok: got 129, expected <= dspark_n_routed_experts 128",
        ),
        (
            {"kv_source_layer_ids": [2, 8, 14, 20, 28]},
            "layer 28: KV owner 28 differs from the candidate source's owner 20",
        ),
    ],
)
def test_each_rule_says_what_it_found_and_expected(patch: dict[str, Any], message: str) -> None:
    assert refusal(patch) == message


@pytest.mark.parametrize("name", ["bos_token_id", "eos_token_id", "pad_token_id", "image_token_id"])
def test_token_ids_of_the_root_lie_in_the_vocabulary(name: str) -> None:
    with pytest.raises(ConfigError, match=f"^{name}: got 129280, expected < vocab_size 129280$"):
        config_from_dict(patched({name: 129280}))


def test_a_scorer_older_than_its_owner_is_refused_where_no_other_rule_has_seen_the_lists() -> None:
    message = "layer 2: scorer 0 is older than KV owner 2, it would reuse another owner's selection"
    assert next(owner_faults([1, 1, 1], [0, 2], [0])) == message
    assert next(owner_faults([1], [0], [])) == (
        "layer 0: scorer None is older than KV owner 0, it would reuse another owner's selection"
    )


def test_an_owner_of_another_ratio_in_between_takes_the_layers_behind_it() -> None:
    # Ratio 1 had an owner at 0, yet the nearest source is the ratio-2 layer 1.
    assert list(owner_faults([1, 2, 1], [0, 1], [0, 1])) == ["layer 2: no KV owner of ratio 1 at or before it"]


def test_rules_are_reported_in_the_order_of_the_specification() -> None:
    # T9 and T12 are both broken; T12 comes last.
    assert refusal({"kv_source_layer_ids": [2, 8, 14, 20, 28], "candidate_topk_blocks": 32}).startswith("candidate")
    # T15 stands before T12.
    both = {"kv_source_layer_ids": [2, 8, 14, 20, 28], "dspark_num_experts_per_tok": 200}
    assert refusal(both).startswith("dspark_num_experts_per_tok")


def test_taps_do_not_matter_without_draft_stages() -> None:
    patch = {"dspark_target_layer_ids": [], "num_nextn_predict_layers": 0, "compress_ratios": RATIOS[:40]}
    assert list(topology_faults(config_from_dict(text_patched(patch)))) == []


def test_candidate_sizes_do_not_matter_without_a_source() -> None:
    patch = {"candidate_source_layer_id": -1, "candidate_topk_blocks": 0, "candidate_block_size": 0}
    assert list(topology_faults(config_from_dict(text_patched(patch)))) == []


def test_the_release_breaks_no_rule() -> None:
    check_topology(release_config())
    assert list(topology_faults(release_config())) == []


def test_an_owner_is_the_largest_source_at_or_below_a_layer() -> None:
    assert [largest_at_or_below([2, 8], layer) for layer in (1, 2, 7, 8, 9)] == [None, 2, 2, 8, 8]
