"""Bytes of a decode step and its ceilings, by hand for the release."""

from dataclasses import replace
from fractions import Fraction

from flash41.cache.geometry import PoolGeometry
from flash41.config.architecture import ModelConfig
from flash41.planning.machine import Machine
from flash41.planning.traffic import (
    Residence,
    Traffic,
    engram_read_bytes,
    request_read_bytes,
    step_traffic,
)
from flash41.planning.weights import rank_weights
from helpers.cache_geometry import release
from helpers.config_documents import release_config
from helpers.planned import gpus, ram

EVERYTHING = Residence(experts=Fraction(1), tables=Fraction(1))
NOTHING = Residence(experts=Fraction(0), tables=Fraction(0))
EXPERT = 18_800_640


def step(
    found: Machine,
    residence: Residence = EVERYTHING,
    *,
    requests: int = 1,
    context: int = 100_000,
    draft_tokens: int = 0,
    config: ModelConfig | None = None,
) -> Traffic:
    model = config or release_config()
    weights = rank_weights(model, found.num_devices, drafts=draft_tokens > 0, images=False)
    return step_traffic(
        model, weights, release(), found, residence, requests=requests, context=context, draft_tokens=draft_tokens
    )


def test_one_request_reads_exactly_its_experts() -> None:
    traffic = step(ram(64))
    weights = rank_weights(release_config(), 1, drafts=False, images=False)
    assert traffic.expert_bytes == 40 * 6 * EXPERT
    assert traffic.weight_bytes == weights.dense_bytes + 40 * 6 * EXPERT
    assert (traffic.tokens, traffic.disk_bytes, traffic.disk_millitokens) == (1, 0, None)


def test_many_requests_share_experts_and_never_read_more_than_all() -> None:
    two, many = step(ram(64), requests=2), step(ram(64), requests=4096)
    # Of 384 experts two rows of six miss all but 12 - 36/384 in the mean.
    assert two.expert_bytes == int(40 * 384 * EXPERT * (1 - Fraction(378, 384) ** 2))
    assert 40 * 383 * EXPERT < many.expert_bytes <= 40 * 384 * EXPERT


def test_cached_rows_of_a_short_and_of_a_long_request() -> None:
    geometry = release()
    short, long = 100, 1 << 20
    windows = 40 * 100 * 1024
    # 18 layers see 50 rows and 20 layers 100; three FULL layers of ratio 2 score 50, five of ratio 1 score 100.
    assert request_read_bytes(release_config(), geometry, short) == (
        windows + (18 * 50 + 20 * 100) * 1024 + (3 * 50 + 5 * 100) * 132
    )
    assert request_read_bytes(release_config(), geometry, long) == (
        40 * 128 * 1024 + 38 * 512 * 1024 + (3 * long // 2 + long + 4 * 2048 * 8) * 132
    )


def test_engram_reads_rows_with_their_scales() -> None:
    assert engram_read_bytes(release_config()) == 2 * 24 * (256 + 8) == 12_672
    assert step(ram(64), requests=3).engram_bytes == 3 * 12_672


def test_the_ceiling_is_bandwidth_over_bytes_of_the_narrowest_memory() -> None:
    found = ram(64, memory_bandwidth=100 * 10**9, disk_read=7 * 10**9)
    traffic = step(found, NOTHING, requests=2)
    assert traffic.disk_bytes == traffic.expert_bytes + 2 * 12_672
    assert traffic.memory_millitokens == 1000 * 2 * 100 * 10**9 // traffic.memory_bytes
    assert traffic.disk_millitokens == 1000 * 2 * 7 * 10**9 // traffic.disk_bytes
    assert (traffic.millitokens, traffic.roof) == (traffic.disk_millitokens, "disk")
    fast = step(replace(found, disk_read=10**15), NOTHING, requests=2)
    assert (fast.millitokens, fast.roof) == (traffic.memory_millitokens, "memory")


def test_half_of_the_experts_in_memory_halves_what_the_disk_reads() -> None:
    half = step(ram(64), Residence(experts=Fraction(1, 2), tables=Fraction(1)))
    assert half.disk_bytes == 40 * 6 * EXPERT // 2


def test_ranks_read_their_share_of_what_is_cut() -> None:
    one, four = step(gpus(1)), step(gpus(4))
    assert four.expert_bytes == one.expert_bytes // 4
    assert one.cache_bytes == four.cache_bytes
    assert one.weight_bytes // 4 < four.weight_bytes < one.weight_bytes // 2
    assert four.millitokens > one.millitokens


def test_drafts_read_their_stages_and_the_head_once_more_and_yield_up_to_six_tokens() -> None:
    plain, drafted = step(gpus(1)), step(gpus(1), draft_tokens=5)
    weights = rank_weights(release_config(), 1, drafts=True, images=False)
    six = int(
        40 * 384 * EXPERT * (1 - Fraction(378, 384) ** 6) + weights.draft_expert_bytes * (1 - Fraction(125, 128) ** 5)
    )
    assert drafted.expert_bytes == six
    assert drafted.weight_bytes - six == plain.weight_bytes - plain.expert_bytes + (
        weights.draft_dense_bytes + weights.head_bytes
    )
    assert (drafted.tokens, drafted.engram_bytes) == (6, 6 * 12_672)


def test_a_model_without_planes_reads_no_cache_of_pages() -> None:
    weights = rank_weights(release_config(), 1, drafts=False, images=False)
    none: PoolGeometry | None = None
    traffic = step_traffic(release_config(), weights, none, ram(64), EVERYTHING, requests=1, context=10, draft_tokens=0)
    assert traffic.cache_bytes == 0
