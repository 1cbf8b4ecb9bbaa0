import pytest

from flash41.config.run import Draft, PoolDtype, Profile
from flash41.errors import ConfigError
from flash41.planning.demand import check_demand, pool_bytes
from helpers.cache_geometry import published
from helpers.config_documents import release_config
from helpers.planned import demand, gpus, ram


def faults(found: str) -> list[str]:
    """Messages of a combined error, without heading and numbers."""
    lines = found.splitlines()
    return [line.strip().partition(". ")[2] for line in lines[1:]] if len(lines) > 1 else lines


def test_everything_that_speaks_against_a_demand_comes_at_once() -> None:
    wanted = demand(
        0,
        2_000_000,
        profile=Profile.ATOM,
        draft=Draft.ON,
        kv_cache_dtype=PoolDtype.FP4,
        index_cache_dtype=PoolDtype.BF16,
        block_size=9,
    )
    with pytest.raises(ConfigError) as caught:
        check_demand(release_config(), gpus(3, reserve_bytes=-1), wanted)
    assert faults(str(caught.value)) == [
        "reserve: got -1, expected from 0 to less than the memory of 151397597184",
        "max_num_seqs: got 0, expected > 0",
        "max_model_len: got 2000000, expected <= max_position_embeddings 1048576",
        "index_cache_dtype: got 'bf16', expected 'fp8' or 'fp4'",
        "block_size: got 9, expected even (ratio 2 needs whole pairs)",
        "kv_cache_dtype: got 'fp4', expected 'bf16' with DSpark",
        "num_attention_heads: got 64, expected a multiple of tensor-parallel size 3",
        "index_n_heads: got 32, expected a multiple of tensor-parallel size 3",
        "o_groups: got 8, expected a multiple of tensor-parallel size 3",
        "vocab_size: got 129280, expected a multiple of tensor-parallel size 3",
        # 384 experts are a multiple of three.
        "dspark_n_routed_experts: got 128, expected a multiple of expert-parallel size 3",
        "block_size: got 9, expected a multiple of ratio 2",
        "block_size: got 9, expected rows per PAGE in whole tiles of 8; smallest legal block_size 16",
    ]


def test_sizes_that_the_specification_admits_are_admitted() -> None:
    for count in (1, 2, 4, 8):
        check_demand(release_config(), gpus(count), demand())
    with pytest.raises(ConfigError, match="o_groups: got 8, expected a multiple of tensor-parallel size 16"):
        check_demand(release_config(), gpus(16), demand())


def test_no_device_and_two_machines_are_refused_without_a_division_by_them() -> None:
    with pytest.raises(ConfigError, match="number of devices: got 0, expected > 0"):
        check_demand(release_config(), gpus(0), demand())
    with pytest.raises(ConfigError, match="only GPUs share a model"):
        check_demand(release_config(), ram(64, num_devices=2), demand())


@pytest.mark.parametrize(
    "row", published()["pools"], ids=lambda row: f"{row['main']}-{row['index']}-{row['draft_tokens']}"
)
def test_pages_and_states_cost_the_published_bytes(row: dict[str, object]) -> None:
    switches = {
        "profile": Profile.ATOM,
        "kv_cache_dtype": PoolDtype(row["main"]),
        "index_cache_dtype": PoolDtype(row["index"]),
        "draft": Draft.ON if row["draft_tokens"] else Draft.OFF,
    }
    state, page = row["state"], row["page"]
    assert isinstance(state, int)
    assert isinstance(page, int)
    wanted = demand(**switches)  # type: ignore[arg-type]
    # Three pages and seven entries; a packed STATE zone starts at a multiple of 256, others of 1024.
    zone = 256 if row["main"] == "fp4" else 1024
    expected = -(-3 * page // zone) * zone + 7 * state
    assert pool_bytes(release_config(), wanted, 7, 0) == 7 * state
    assert pool_bytes(release_config(), wanted, 1, 3 * 256) == -(-3 * page // zone) * zone + state
    assert pool_bytes(release_config(), wanted, 3, 256) == expected - 4 * state


def test_a_published_budget_holds_the_published_tokens() -> None:
    example = published()["budget_example"]
    wanted = demand(profile=Profile.ATOM, draft=Draft.ON)
    pages, requests = example["pages"], example["requests"]
    # As if all pages but one per other request belonged to one: bytes depend on their number only.
    per_request = pages // requests
    assert pool_bytes(release_config(), wanted, requests, per_request * 256) <= example["bytes_gib"] * 2**30
    assert pool_bytes(release_config(), wanted, requests, (per_request + 1) * 256) > example["bytes_gib"] * 2**30
