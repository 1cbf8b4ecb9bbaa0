import subprocess
import sys

import pytest

from flash41.config.run import Draft, PoolDtype, PoolFormat, Profile, RunWish

BF16, FP4, FP8, FP32 = PoolDtype.BF16, PoolDtype.FP4, PoolDtype.FP8, PoolDtype.FP32


@pytest.mark.parametrize(
    ("profile", "main", "index"),
    [
        (Profile.VENDOR, {BF16, FP4}, {BF16, FP4}),
        (Profile.ATOM, {BF16, FP4}, {FP8, FP4}),
        (Profile.FP32, {FP32}, {FP32}),
        (Profile.DEMO, {BF16, FP4}, {BF16, FP4}),
    ],
)
def test_each_profile_admits_the_pools_of_the_matrix(
    profile: Profile, main: set[PoolDtype], index: set[PoolDtype]
) -> None:
    admitted = {(pool.main, pool.index) for pool in profile.allowed_pools}
    assert admitted == {(m, i) for m in main for i in index}
    assert profile.allowed_pools[0] == profile.default_pool


@pytest.mark.parametrize(
    ("profile", "main", "index"),
    [
        (Profile.VENDOR, BF16, FP4),
        (Profile.ATOM, BF16, FP8),
        (Profile.FP32, FP32, FP32),
        (Profile.DEMO, BF16, FP4),
    ],
)
def test_choosing_a_profile_resets_the_pools(profile: Profile, main: PoolDtype, index: PoolDtype) -> None:
    assert RunWish(profile=profile).pool == PoolFormat(main=main, index=index)


def test_a_named_pool_stays_beside_the_default_of_the_other() -> None:
    assert RunWish(profile=Profile.ATOM, kv_cache_dtype=FP4).pool == PoolFormat(main=FP4, index=FP8)
    assert RunWish(index_cache_dtype=BF16).pool == PoolFormat(main=BF16, index=BF16)


@pytest.mark.parametrize(
    ("profile", "stores", "rounds", "wo_a", "demo"),
    [
        (Profile.VENDOR, True, True, "bf16", False),
        (Profile.ATOM, True, True, "fp8", False),
        (Profile.FP32, False, False, "fp32", False),
        (Profile.DEMO, True, True, "bf16", True),
    ],
)
def test_profiles_round_what_the_specification_says(
    profile: Profile, stores: bool, rounds: bool, wo_a: str, demo: bool
) -> None:
    assert profile.bf16_stores is stores
    assert profile.quantizes_activations is rounds
    assert profile.rounds_kv is rounds
    assert profile.wo_a == wo_a
    assert (profile.stale_index_slots, profile.bf16_score_chain) == (demo, demo)


def test_index_rounding_follows_the_pool_in_profile_atom_only() -> None:
    found = {(profile.value, pool.value): profile.index_rounding(pool) for profile in Profile for pool in PoolDtype}
    for (profile, pool), rounding in found.items():
        expected = None if profile == "fp32" else "fp8" if (profile, pool) == ("atom", "fp8") else "fp4"
        assert rounding == expected, (profile, pool)


def test_the_default_wish_is_exact_and_undrafted() -> None:
    wish = RunWish()
    assert wish.profile is Profile.VENDOR
    assert not wish.drafts
    assert not wish.decoder_replay
    assert not wish.prefix_replay
    assert wish.eager
    assert (wish.block_size, wish.max_num_seqs, wish.max_num_batched_tokens) == (256, 512, 16384)
    assert RunWish(draft=Draft.ADAPTIVE).drafts


def test_the_room_imports_no_torch() -> None:
    modules = (
        "architecture",
        "document",
        "huggingface",
        "keys",
        "primes",
        "run",
        "run_rules",
        "topology",
        "validation",
    )
    imports = "; ".join(f"import flash41.config.{module}" for module in modules)
    code = f"import sys; {imports}; import flash41.parallel.sharding; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
