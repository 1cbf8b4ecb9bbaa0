"""How many images: every rule by hand on the release, and what must hold for any budget."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flash41.cache.geometry import pool_geometry
from flash41.cache.placement import placement
from flash41.config.run import Profile, RunWish
from flash41.errors import ConfigError
from flash41.planning.images import image_interval, image_plan
from flash41.planning.resolve import resolve
from helpers.config_documents import release_config, tiny_config

PAGE, STATE, IMAGE = 739_840, 5_276_672, 5_242_880
"""Bytes of the release with BF16 main and FP8 index rows."""


def images(length: int = 1000, **values: Any) -> tuple[int, str]:
    wish = RunWish(**{"profile": Profile.ATOM, "max_num_seqs": 3, **values})
    found = image_plan(wish, pool_geometry(release_config(), wish.pool, block_size=wish.block_size), length)
    return found.count, found.reason


def test_two_per_slot_and_eight_more_where_nothing_limits_them() -> None:
    for slots, expected in ((1, 10), (8, 24), (512, 1032)):
        assert images(max_num_seqs=slots) == (expected, f"{IMAGE:,} bytes of STATE each; 2 per slot and 8 more")


def test_none_where_the_prefix_cache_is_off() -> None:
    assert images(prefix_cache=False) == (0, "the prefix cache is off, as asked")


def test_none_where_rows_depend_on_how_a_prompt_is_cut() -> None:
    count, reason = images(profile=Profile.DEMO)
    assert count == 0
    assert "profile demo" in reason


def test_images_take_an_eighth_of_what_state_leaves() -> None:
    # All pages at full length would take 12 of these megabytes; the budget leaves an eighth of 8 * 4 images' bytes.
    budget = 3 * STATE + 8 * 4 * IMAGE
    count, reason = images(length=200_000, max_num_seqs=3, memory_bytes=budget - 1)
    assert count == 0  # the longest request needs 782 pages
    count, reason = images(length=50_000, max_num_seqs=3, memory_bytes=budget)
    assert count == 4
    assert reason == f"{IMAGE:,} bytes of STATE each; what a budget of {budget:,} bytes leaves"
    assert images(length=50_000, max_num_seqs=3, memory_bytes=budget - 8)[0] == 3


def test_what_is_left_behind_all_pages_goes_to_images() -> None:
    pool = 3 * STATE + 12 * PAGE
    geometry = pool_geometry(release_config(), RunWish(profile=Profile.ATOM).pool, block_size=256)
    exact = placement(geometry, 12, 3).total_bytes
    assert pool <= exact < pool + IMAGE
    assert images(memory_bytes=exact + 9 * IMAGE)[0] == 9
    assert images(memory_bytes=exact + 14 * IMAGE)[0] == 14
    assert images(memory_bytes=exact + 99 * IMAGE)[0] == 14


def test_a_budget_without_room_for_an_image_says_that_nothing_is_reused() -> None:
    count, reason = images(memory_bytes=3 * STATE + 5 * PAGE)
    assert (count, reason.endswith("; no prefix is reused")) == (0, True)


@settings(max_examples=60, deadline=None)
@given(budget=st.integers(60_000, 2_000_000), slots=st.integers(1, 4), length=st.integers(1, 300))
def test_images_never_shorten_the_longest_request(budget: int, slots: int, length: int) -> None:
    values: dict[str, Any] = {
        "max_num_seqs": slots,
        "max_model_len": length,
        "memory_bytes": budget,
        "block_size": 8,
    }
    geometry = pool_geometry(tiny_config(), RunWish().pool, block_size=8)
    if placement(geometry, geometry.pages_for(length), slots).total_bytes > budget:
        return
    plan = resolve(RunWish(**values), tiny_config())
    assert plan.max_model_len == length
    assert plan.total_bytes <= budget
    assert plan.num_images <= 2 * slots + 8


@pytest.mark.parametrize(
    ("asked", "block_size", "expected"), [(8192, 256, 8192), (1000, 256, 768), (1, 256, 256), (600, 258, 516)]
)
def test_the_interval_is_snapped_down_to_whole_pages(asked: int, block_size: int, expected: int) -> None:
    assert image_interval(RunWish(state_image_interval=asked, block_size=block_size)) == expected


def test_an_interval_of_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="state_image_interval: got 0, expected > 0"):
        resolve(RunWish(state_image_interval=0), tiny_config())
