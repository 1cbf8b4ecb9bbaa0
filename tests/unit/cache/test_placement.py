"""Zones and addresses: the published example, and no byte with two owners."""

from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flash41.cache.placement import Placement, placement, tagged_address
from flash41.config.run import PoolDtype
from helpers.cache_geometry import PAIRS, published, release, release_with, tiny

EXAMPLE = published()["placement_example"]


def test_the_published_example_of_three_pages() -> None:
    placed = placement(release(), EXAMPLE["pages"], 2)
    assert {str(owner): placed.index_start(owner) for owner in (2, 8, 14, 20)} == EXAMPLE["index_plane_offsets"]
    assert placed.state_start == EXAMPLE["state_start"]
    assert placed.window_address(1, 5, 300) == EXAMPLE["window_addr_layer5_slot1_pos300"]
    assert placed.main_address(14, 2, 7) == EXAMPLE["main_addr_owner14_page2_row7"]
    assert placed.total_bytes == placed.state_start + 2 * 5_276_672


def test_addresses_are_whole_rows_with_the_published_strides() -> None:
    placed = placement(release(), 3, 2)
    assert placed.whole_rows
    row = placed.geometry.main_row_bytes
    assert placed.main_address(8, 2, 3) == (2 * 640 + 128 + 3) * row
    first = placed.state_start // row
    assert placed.window_address(1, 39, 127) == (first + 5153 + 39 * 128 + 127) * row


def test_a_packed_pool_is_addressed_in_bytes_with_the_kind_of_row() -> None:
    placed = placement(release("fp4", "fp4"), 3, 2)
    assert not placed.whole_rows
    assert placed.main_address(14, 2, 7) == 2 * 184_320 + (256 + 7) * 288
    assert placed.window_address(1, 5, 300) == placed.state_start + 2_736_384 + (5 * 128 + 44) * 528
    assert tagged_address(288, is_window=False) == 576
    assert tagged_address(528, is_window=True) == 1057


def test_a_width_that_fills_no_unit_is_not_addressed_in_rows() -> None:
    assert placement(release_with({"head_dim": 64}), 3, 2).whole_rows
    assert not placement(release_with({"head_dim": 96}), 3, 2).whole_rows


def test_the_state_zone_begins_at_a_multiple_of_both_alignments() -> None:
    # Rows of 320 bytes: entries align to 320, zones to 256.
    placed = placement(release_with({"head_dim": 160}), 3, 2)
    assert placed.geometry.alignment_bytes == 320
    assert placed.state_start % 320 == placed.state_start % 256 == 0


def test_a_page_id_is_scaled_to_a_tile_of_a_plane() -> None:
    placed = placement(release(), 3, 1)
    for owner in (2, 20):
        for tile in (0, 15):
            address = placed.index_value_address(owner, 2, 8 * tile)
            assert placed.index_start(owner) + placed.index_tile_id(owner, 2, tile) * 1056 == address


def test_index_addresses_follow_the_layout_of_the_plane() -> None:
    tiled = placement(release(), 3, 1)
    assert tiled.index_scale_address(2, 1, 9, 2) == tiled.index_start(2) + 16_896 + 1056 + 1024 + 4 + 2
    planes = placement(release("bf16", "fp4"), 3, 1)
    assert planes.index_value_address(2, 1, 9, 2) == planes.index_start(2) + (128 + 9) * 64 + 2
    assert planes.index_scale_address(2, 1, 9, 2) == planes.index_start(2) + 3 * 128 * 64 + (128 + 9) * 4 + 2


def ranges(placed: Placement) -> Iterator[tuple[int, int]]:
    """Start and end of everything that is stored; index keys byte by byte."""
    geometry, pages = placed.geometry, range(placed.num_pages)
    for owner in geometry.owners:
        for page, row in ((page, row) for page in pages for row in range(owner.rows_per_page)):
            start = placed.main_address(owner.layer_id, page, row)
            yield start, start + geometry.main_row_bytes
            for byte in range(geometry.index.value_bytes):
                start = placed.index_value_address(owner.layer_id, page, row, byte)
                yield start, start + 1
            for byte in range(geometry.index.scale_bytes):
                start = placed.index_scale_address(owner.layer_id, page, row, byte)
                yield start, start + 1
    for slot in range(placed.num_slots):
        for field in geometry.state_fields[1:]:
            start = placed.field_address(slot, field.name)
            yield start, start + field.num_bytes
        for layer in range(geometry.num_layers):
            for position in range(geometry.window_ring):
                start = placed.window_address(slot, layer, position)
                yield start, start + geometry.window_row_bytes


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("drafts", [0, 5])
def test_no_byte_has_two_owners(pair: tuple[PoolDtype, PoolDtype], drafts: int) -> None:
    placed = placement(tiny(*pair, block_size=4, draft_tokens=drafts), 3, 2)
    stored = sorted(ranges(placed))
    assert stored[0][0] == 0
    assert all(end <= start for (_, end), (start, _) in pairwise(stored))
    assert stored[-1][1] <= placed.total_bytes


@given(pair=st.sampled_from(PAIRS), tiles=st.integers(1, 9), pages=st.integers(0, 50), slots=st.integers(0, 5))
@settings(deadline=None, max_examples=60)
def test_zones_are_aligned_and_in_order(pair: tuple[PoolDtype, PoolDtype], tiles: int, pages: int, slots: int) -> None:
    geometry = tiny(*pair, block_size=4 * tiles)
    placed = placement(geometry, pages, slots)
    end = pages * geometry.page_main_bytes
    for owner, start in zip(geometry.owners, placed.index_starts, strict=True):
        assert start % 256 == 0
        assert 0 <= start - end < 256
        end = start + pages * owner.index_bytes
    assert placed.state_start >= end
    assert placed.state_start % 256 == placed.state_start % geometry.alignment_bytes == 0
    assert placed.total_bytes - placed.state_start == slots * geometry.state_bytes


def test_an_address_outside_the_pool_is_refused() -> None:
    placed = placement(release(), 3, 2)
    # Pitfall 86: a negative page would be a legal tensor index.
    for page, row in ((-1, 0), (3, 0), (0, -1), (0, 128)):
        with pytest.raises(AssertionError, match="of"):
            placed.main_address(2, page, row)
    for slot, layer in ((-1, 0), (2, 0), (0, 40)):
        with pytest.raises(AssertionError, match="of"):
            placed.window_address(slot, layer, 0)
