import dataclasses
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flash41.config.architecture import ModelConfig
from flash41.config.run import Draft, DraftAccept, PoolDtype, Profile, RunWish, Weights
from flash41.config.run_rules import check, refusals
from flash41.errors import ConfigError
from helpers.config_documents import release_config, tiny_config

RELEASE = release_config()
BF16, FP4, FP8, FP32 = PoolDtype.BF16, PoolDtype.FP4, PoolDtype.FP8, PoolDtype.FP32
TRANSFER = "(this connector moves PAGE but not STATE)"
SCHEDULE = "expected ragged verification and a calibration profile"


def with_lists(config: ModelConfig, engram: tuple[int, ...], sources: tuple[int, ...]) -> ModelConfig:
    return dataclasses.replace(
        config,
        engram=dataclasses.replace(config.engram, layer_ids=engram),
        attention=dataclasses.replace(config.attention, kv_source_layer_ids=sources),
    )


def test_the_default_wish_passes_for_every_profile() -> None:
    for profile in Profile:
        for config in (RELEASE, tiny_config()):
            assert refusals(RunWish(profile=profile), config) == []
            check(RunWish(profile=profile), config)


@pytest.mark.parametrize(
    ("switches", "messages"),
    [
        # Q6
        (
            {"expert_activations": "mxfp4"},
            ["expert activations: got 'mxfp4', expected 'mxfp8' (MXFP4 activations shift routed output by about 12 %)"],
        ),
        # R1 to R3
        (
            {"eager": False},
            ["graph_mode: got None, expected FULL, PIECEWISE or eager execution"],
        ),
        (
            {"eager": False, "graph_mode": "FULL_DECODE_ONLY"},
            ["graph_mode: got 'FULL_DECODE_ONLY', expected FULL, PIECEWISE or eager execution"],
        ),
        ({"level": 2}, ["level: got 2, expected 0 or 3"]),
        (
            {"level": 3, "eager": False, "graph_mode": "PIECEWISE"},
            [
                "graph_mode: got 'PIECEWISE', expected FULL at level 3 (or eager)",
                "unavailable: graph_mode 'PIECEWISE' (run eagerly)",
                "unavailable: level 3 (use level 0)",
            ],
        ),
        # R4, R5
        (
            {"pipeline_parallel_size": 2},
            ["pipeline_parallel_size: got 2, expected 1 (only tensor and expert parallelism)"],
        ),
        (
            {"prefill_context_parallel_size": 4},
            ["prefill_context_parallel_size: got 4, expected 1 (only tensor and expert parallelism)"],
        ),
        (
            {"decode_context_parallel_size": 0},
            ["decode_context_parallel_size: got 0, expected 1 (only tensor and expert parallelism)"],
        ),
        ({"data_parallel_size": 8}, ["data_parallel_size: got 8, expected 1"]),
        (
            {"data_parallel_attention": True},
            ["data_parallel_attention: got True, expected False with data_parallel_size 1"],
        ),
        # R6, R8, R9, R10
        ({"two_batch_overlap": True}, ["two_batch_overlap: not supported"]),
        ({"prefill_decode_split": True}, ["prefill_decode_split: not supported"]),
        ({"plugin_mode": "vllm"}, ["plugin mode: got 'vllm', expected the native engine"]),
        ({"online_quantization": True}, ["online_quantization: not supported"]),
        ({"expert_load_balancing": True}, ["expert_load_balancing: not supported"]),
        # R7
        ({"kv_transfer": True}, [f"kv_connector: got 'moriio', expected 'lmcache_mp' {TRANSFER}"]),
        ({"kv_connector": "nixl"}, [f"kv_connector: got 'nixl', expected 'lmcache_mp' {TRANSFER}"]),
        # R11, R12
        (
            {"profile": Profile.ATOM, "index_cache_dtype": BF16},
            ["index_cache_dtype: got 'bf16', expected 'fp8' or 'fp4'"],
        ),
        ({"index_cache_dtype": FP8}, ["index_cache_dtype: got 'fp8', expected 'fp4' or 'bf16'"]),
        (
            {"kv_cache_dtype": FP8},
            ["kv_cache_dtype: got 'fp8', expected 'bf16' or 'fp4' (there is no FP8 main pool)"],
        ),
        (
            {"profile": Profile.ATOM, "kv_cache_dtype": FP32},
            ["kv_cache_dtype: got 'fp32', expected 'bf16' or 'fp4' (there is no FP8 main pool)"],
        ),
        # R13
        ({"block_size": 15}, ["block_size: got 15, expected even (ratio 2 needs whole pairs)"]),
        # R15
        (
            {"profile": Profile.FP32, "kv_cache_dtype": BF16},
            ["profile fp32: got pool 'bf16', expected fp32"],
        ),
        (
            {"profile": Profile.FP32, "kv_cache_dtype": FP4, "index_cache_dtype": FP8},
            ["profile fp32: got pool 'fp4', expected fp32", "profile fp32: got pool 'fp8', expected fp32"],
        ),
        # P1
        ({"tensor_parallel_size": 0}, ["tensor_parallel_size: got 0, expected >= 1"]),
        ({"expert_parallel_size": -1}, ["expert_parallel_size: got -1, expected >= 1"]),
        # S1 to S6
        ({"draft_method": "eagle"}, ["speculative.method: got 'eagle', expected 'dspark'"]),
        (
            {"num_draft_tokens": 7},
            ["speculative.num_tokens: got 7, expected 5 (the block is bidirectional, its width is part of the model)"],
        ),
        (
            {"model": Path("a"), "draft_model": Path("b")},
            ["speculative.model: got 'b', expected the target checkpoint"],
        ),
        (
            {"profile": Profile.ATOM, "draft": Draft.ON, "kv_cache_dtype": FP4},
            ["kv_cache_dtype: got 'fp4', expected 'bf16' with DSpark"],
        ),
        ({"relaxed_acceptance": True}, ["speculative.relaxed: expected strict verification"]),
        ({"ragged_verification": True}, [f"speculative.schedule: got no calibration profile, {SCHEDULE}"]),
        (
            {"calibration_profile": Path("costs.json")},
            [f"speculative.schedule: got no ragged verification, {SCHEDULE}"],
        ),
        # Sizes
        ({"max_num_seqs": 0}, ["max_num_seqs: got 0, expected > 0"]),
        ({"block_size": 0}, ["block_size: got 0, expected > 0"]),
        ({"threads": -2}, ["threads: got -2, expected > 0"]),
        ({"threads": 1025}, ["threads: got 1025, expected <= 1024"]),
        (
            {"max_num_seqs": "8", "max_model_len": 1.5, "threads": True},
            [
                "max_model_len: got 1.5, expected an integer",
                "max_num_seqs: got '8', expected an integer",
                "threads: got True, expected an integer",
            ],
        ),
        ({"max_model_len": 1048577}, ["max_model_len: got 1048577, expected <= max_position_embeddings 1048576"]),
    ],
    ids=lambda value: str(value)[:60],
)
def test_each_rule_has_its_wording(switches: dict[str, Any], messages: list[str]) -> None:
    assert refusals(RunWish(**switches), RELEASE) == messages


@pytest.mark.parametrize(
    ("switches", "message"),
    [
        ({"eager": False, "graph_mode": "FULL"}, "unavailable: graph_mode 'FULL' (run eagerly)"),
        ({"level": 3}, "unavailable: level 3 (use level 0)"),
        ({"tensor_parallel_size": 4}, "unavailable: tensor_parallel_size 4 (use 1)"),
        ({"expert_parallel_size": 4}, "unavailable: expert_parallel_size 4 (use 1)"),
        ({"kv_connector": "lmcache_mp"}, "unavailable: kv_connector 'lmcache_mp' (leave the transfer off)"),
        ({"kv_connector": " LMCache-MP"}, "unavailable: kv_connector 'lmcache_mp' (leave the transfer off)"),
        (
            {"ragged_verification": True, "calibration_profile": Path("costs.json")},
            "unavailable: a calibration profile (draft 'adaptive' measures while it runs)",
        ),
    ],
    ids=lambda value: str(value)[:60],
)
def test_modes_that_pass_their_rule_but_do_not_exist_are_unavailable(switches: dict[str, Any], message: str) -> None:
    assert refusals(RunWish(**switches), RELEASE) == [message]


def test_every_pool_pair_outside_the_matrix_is_refused_and_no_other() -> None:
    for profile in Profile:
        for main in PoolDtype:
            for index in PoolDtype:
                wish = RunWish(profile=profile, kv_cache_dtype=main, index_cache_dtype=index)
                assert (refusals(wish, RELEASE) == []) == (wish.pool in profile.allowed_pools), wish.pool


def test_fp4_pools_draft_outside_profile_atom() -> None:
    assert refusals(RunWish(draft=Draft.ON, kv_cache_dtype=FP4), RELEASE) == []


def test_the_width_and_the_checkpoint_may_be_named_when_they_are_the_models_own() -> None:
    wish = RunWish(draft=Draft.ON, num_draft_tokens=5, model=Path("a"), draft_model=Path("a"))
    assert refusals(wish, RELEASE) == []


def test_a_rule_of_acceptance_needs_drafts() -> None:
    for rule in DraftAccept:
        expected = f"draft: got 'off', expected 'on' or 'adaptive' with draft_accept '{rule.value}'"
        assert refusals(RunWish(draft_accept=rule), RELEASE) == [f"{expected} (it says which drafts stay)"]
        assert refusals(RunWish(draft=Draft.ADAPTIVE, draft_accept=rule), RELEASE) == []


def test_drafting_needs_draft_stages() -> None:
    bare = dataclasses.replace(RELEASE, dspark=dataclasses.replace(RELEASE.dspark, num_stages=0))
    assert refusals(RunWish(draft=Draft.ADAPTIVE), bare) == [
        "draft: got 'adaptive', expected 'off' (this checkpoint has no draft stages)"
    ]
    assert refusals(RunWish(), bare) == []


def test_decoder_replay_needs_the_engram_layers_before_the_last_source() -> None:
    wish = RunWish(decoder_replay=True)
    assert refusals(wish, RELEASE) == []
    assert refusals(wish, with_lists(RELEASE, (1, 20), (2, 8, 14, 20))) == []
    assert refusals(wish, with_lists(RELEASE, (1, 21, 30), (2, 8, 14, 20))) == [
        "replay: Engram layer 21 lies behind the last KV source 20, expected before it",
        "replay: Engram layer 30 lies behind the last KV source 20, expected before it",
    ]
    assert refusals(RunWish(), with_lists(RELEASE, (1, 21), (2, 8, 14, 20))) == []


def test_decoder_replay_needs_a_layer_to_skip() -> None:
    wish = RunWish(decoder_replay=True)
    for sources, last in (((2, 39), 39), ((), None)):
        assert refusals(wish, with_lists(RELEASE, (), sources)) == [
            f"replay: got no layer behind the last KV source {last}, expected at least one to skip"
        ]


def test_prefix_replay_needs_a_prefix_and_rows_that_do_not_depend_on_the_cut() -> None:
    assert refusals(RunWish(prefix_replay=True), RELEASE) == []
    assert refusals(RunWish(prefix_replay=True, prefix_cache=False), RELEASE) == [
        "replay: got prefix_replay without the prefix cache, expected both or neither"
    ]
    assert refusals(RunWish(prefix_replay=True, profile=Profile.DEMO), RELEASE) == [
        "profile: got 'demo', expected another with prefix_replay (its rows depend on the cut)"
    ]


def test_replay_with_drafts_is_unavailable() -> None:
    wish = RunWish(decoder_replay=True, prefix_replay=True, draft=Draft.ON)
    assert [fault for fault in refusals(wish, RELEASE) if "replay" in fault] == [
        "unavailable: decoder_replay with drafts (use one of them)",
        "unavailable: prefix_replay with drafts (use one of them)",
    ]


def test_all_faults_come_in_one_error() -> None:
    wish = RunWish(
        profile=Profile.ATOM,
        index_cache_dtype=BF16,
        kv_cache_dtype=FP8,
        block_size=7,
        level=1,
        data_parallel_size=2,
        two_batch_overlap=True,
        relaxed_acceptance=True,
        tensor_parallel_size=2,
    )
    faults = refusals(wish, RELEASE)
    assert len(faults) == 8
    with pytest.raises(ConfigError) as caught:
        check(wish, RELEASE)
    message = str(caught.value)
    assert message.startswith("options: 8 faults\n")
    assert all(fault in message for fault in faults)


def test_a_single_fault_is_the_whole_message() -> None:
    with pytest.raises(ConfigError, match=r"^level: got 1, expected 0 or 3$"):
        check(RunWish(level=1), RELEASE)


REFUSED = {
    "eager": False,
    "level": 1,
    "pipeline_parallel_size": 2,
    "prefill_context_parallel_size": 2,
    "decode_context_parallel_size": 2,
    "data_parallel_size": 2,
    "data_parallel_attention": True,
    "two_batch_overlap": True,
    "kv_transfer": True,
    "prefill_decode_split": True,
    "plugin_mode": "other",
    "online_quantization": True,
    "expert_load_balancing": True,
    "kv_cache_dtype": FP8,
    "index_cache_dtype": FP8,
    "block_size": 33,
    "draft_method": "mtp",
    "num_draft_tokens": 4,
    "relaxed_acceptance": True,
    "ragged_verification": True,
}


@given(st.sets(st.sampled_from(sorted(REFUSED)), min_size=1))
@settings(deadline=None, max_examples=100)
def test_faults_of_any_set_of_switches_are_the_faults_of_each(names: set[str]) -> None:
    together = refusals(RunWish(**{name: REFUSED[name] for name in names}), RELEASE)
    alone = [fault for name in names for fault in refusals(RunWish(**{name: REFUSED[name]}), RELEASE)]
    assert len(alone) >= len(names)
    assert sorted(together) == sorted(alone)


def test_a_budget_for_weights_that_stay_in_the_files_is_refused() -> None:
    wish = RunWish(weights=Weights.MAPPED, weights_memory_bytes=1 << 30)
    assert refusals(wish, release_config()) == [
        "weights: got 'mapped', expected 'auto' or 'resident' with weights_memory_bytes (mapped keeps nothing)"
    ]
    assert refusals(RunWish(weights=Weights.MAPPED), release_config()) == []
    assert refusals(RunWish(weights_memory_bytes=0), release_config()) == ["weights_memory_bytes: got 0, expected > 0"]
