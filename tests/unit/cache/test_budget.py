"""Budgets: the state of every request first, pages with the rest, never more than there is."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flash41.cache.budget import DeviceMemory, capacity_statement, split_budget, state_floor
from flash41.cache.placement import placement
from flash41.config.run import PoolDtype
from flash41.errors import CapacityError
from helpers.cache_geometry import PAIRS, published, release, release_with, tiny

GIB = 2**30


def test_the_published_budget_buys_the_published_pages() -> None:
    case = published()["budget_example"]
    split = split_budget(release(draft_tokens=5), case["bytes_gib"] * GIB, case["requests"])
    assert round(split.floor_bytes / GIB, 3) == case["state_floor_gib"]
    assert (split.num_pages, split.num_tokens) == (case["pages"], case["tokens"])
    assert split.placement.num_slots == case["requests"]


def test_capacity_is_told_as_state_and_tokens_apart() -> None:
    # Pitfall 102: one number per token would depend on the length of requests.
    assert capacity_statement(release()) == "5,276,672 + 2,890 * tokens bytes"
    # Main rows of a page are aligned as a whole: 40 * 36 bytes fill 1,536, 40 keys of 132 bytes follow.
    narrow = release_with({"head_dim": 64}, main="fp4", block_size=16)
    assert capacity_statement(narrow) == f"342,272 + {(1536 + 40 * 132) // 16} * tokens bytes"


def test_a_fraction_of_a_byte_per_token_is_written_as_a_fraction() -> None:
    geometry = tiny(PoolDtype.FP4, PoolDtype.FP4, block_size=12)
    rate = geometry.bytes_per_token
    assert rate.denominator > 1
    assert capacity_statement(geometry).endswith(f" + {rate.numerator:,}/{rate.denominator} * tokens bytes")


def test_a_budget_below_the_state_floor_is_refused() -> None:
    geometry = release()
    floor = state_floor(geometry, 4)
    message = f"cache budget: got {floor - 1} bytes, expected at least {floor} for 4 STATE entries"
    with pytest.raises(CapacityError, match=f"^{message}$"):
        split_budget(geometry, floor - 1, 4)
    assert split_budget(geometry, floor, 4).num_pages == 0


def test_the_refusal_names_the_fraction_that_would_do() -> None:
    geometry = release()
    floor = state_floor(geometry, 4)
    memory = DeviceMemory(total_bytes=4 * floor, held_bytes=floor)
    with pytest.raises(CapacityError, match=r"for 4 STATE entries; minimum memory fraction 0.500$"):
        split_budget(geometry, floor - 1, 4, memory)
    rounded = DeviceMemory(total_bytes=3 * floor, held_bytes=0)
    with pytest.raises(CapacityError, match=r"; minimum memory fraction 0.334$"):
        split_budget(geometry, floor - 1, 4, rounded)


def test_the_refusal_says_when_others_hold_too_much() -> None:
    geometry = release()
    floor = state_floor(geometry, 4)
    memory = DeviceMemory(total_bytes=4 * floor, held_bytes=4 * floor - 1)
    with pytest.raises(CapacityError, match=f"; {4 * floor - 1} of {4 * floor} bytes are held by others$"):
        split_budget(geometry, 1, 4, memory)


@given(pair=st.sampled_from(PAIRS), tiles=st.integers(1, 9), slots=st.integers(0, 4), extra=st.integers(0, 400_000))
@settings(deadline=None, max_examples=80)
def test_a_split_fits_and_one_page_more_would_not(
    pair: tuple[PoolDtype, PoolDtype], tiles: int, slots: int, extra: int
) -> None:
    geometry = tiny(*pair, block_size=4 * tiles)
    budget = state_floor(geometry, slots) + extra
    split = split_budget(geometry, budget, slots)
    assert split.placement.total_bytes <= budget
    assert placement(geometry, split.num_pages + 1, slots).total_bytes > budget
