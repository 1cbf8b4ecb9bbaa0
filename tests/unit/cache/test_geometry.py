"""Sizes of pages and entries: the published figures, and what must hold for any model and page size."""

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flash41.cache.geometry import aligned, exact_window_halo, pool_geometry, row_bytes
from flash41.config.run import PoolDtype
from flash41.errors import ConfigError
from helpers.cache_geometry import PAIRS, pool, published, release, release_with, tiny
from helpers.config_documents import release_config

GIB = 2**30
PUBLISHED = published()


@pytest.mark.parametrize("case", PUBLISHED["pools"], ids=lambda c: f"{c['main']}+{c['index']}+{c['draft_tokens']}")
def test_a_pool_of_the_release_has_the_published_sizes(case: dict[str, Any]) -> None:
    geometry = release(case["main"], case["index"], draft_tokens=case["draft_tokens"])
    found = {
        "layers": geometry.num_layers,
        "window_ring": geometry.window_ring,
        "compressor_ring": geometry.compressor_ring,
        "main_row": geometry.main_row_bytes,
        "window_row": geometry.window_row_bytes,
        "index_row": geometry.index.row_bytes,
        "page_main": geometry.page_main_bytes,
        "page_index": geometry.page_index_bytes,
        "page": geometry.page_bytes,
        "bytes_per_token": geometry.bytes_per_token,
        "state_fields": {field.name: field.num_bytes for field in geometry.state_fields},
        "state": geometry.state_bytes,
        "image_pages": geometry.image_pages,
        "gib_per_mi_tokens": round(float(geometry.bytes_per_token * 2**20 / GIB), 3),
    }
    assert found == {key: value for key, value in case.items() if key not in ("main", "index", "draft_tokens")}


@pytest.mark.parametrize("case", PUBLISHED["owners"], ids=lambda case: f"owner {case['layer']}")
def test_an_owner_has_its_published_share_of_a_page(case: dict[str, Any]) -> None:
    owner = release().owner(case["layer"])
    assert (owner.ratio, owner.rows_per_page) == (case["ratio"], case["rows_per_page"])
    assert (owner.main_row_offset, owner.main_bytes) == (case["main_row_offset"], case["main_bytes_bf16"])
    assert owner.index_bytes == case["index_bytes_fp8"]
    assert release("bf16", "fp4").owner(case["layer"]).index_bytes == case["index_bytes_fp4"]


@pytest.mark.parametrize("case", PUBLISHED["page_sizes"], ids=lambda case: f"{case['page_tokens']} tokens")
def test_smaller_pages_cost_a_larger_table_and_a_smaller_tail(case: dict[str, Any]) -> None:
    geometry = release(block_size=case["page_tokens"])
    assert (geometry.page_bytes, geometry.image_pages) == (case["page"], case["image_pages"])
    assert geometry.table_bytes(512, 2**20) == case["table_mib_512_requests_1mi"] * 2**20
    assert round(geometry.worst_tail_bytes / 1024, 1) == case["worst_tail_kib"]


def test_the_other_published_figures() -> None:
    geometry, drafting = release(), release(draft_tokens=5)
    rows = PUBLISHED["strides"]
    assert geometry.page_rows == rows["page_main_rows"]
    assert geometry.state_bytes == rows["state_rows"] * geometry.main_row_bytes
    assert drafting.state_bytes == rows["state_rows_dspark"] * geometry.main_row_bytes
    assert (geometry.index.tile_rows, geometry.index.tile_bytes) == (rows["index_tile_rows"], rows["index_tile_bytes"])
    image = PUBLISHED["window_image_in_position_order"]
    assert (drafting.num_layers, drafting.window) == (image["layers"], image["rows"])
    assert drafting.image_bytes == image["bytes"]
    assert drafting.pages_behind(drafting.image_bytes) == image["pages"]
    assert geometry.pages_behind(64 * geometry.state_bytes) == PUBLISHED["pages_behind_64_state_slots"]
    state_gib = PUBLISHED["state_512_requests_gib"]
    assert round(512 * geometry.state_bytes / GIB, 2) == state_gib["plain"]
    assert round(512 * drafting.state_bytes / GIB, 2) == state_gib["dspark"]
    assert release("bf16", "bf16").bytes_per_token == PUBLISHED["bf16_bf16_bytes_per_token"]
    assert release("bf16", "bf16", block_size=16).page_bytes == PUBLISHED["historical"]["bf16_page"]
    for case in PUBLISHED["exact_window_halo"]:
        assert exact_window_halo(128, case["layers"]) == case["tokens"]


def test_a_token_costs_what_its_rows_cost() -> None:
    assert release().bytes_per_token == 3 * 512 + 1024 + 330
    assert release().page_rows == 256 * Fraction(5, 2)


def test_drafting_changes_the_entry_and_not_the_page() -> None:
    plain, drafting = release(), release(draft_tokens=5)
    assert (plain.page_bytes, plain.owners) == (drafting.page_bytes, drafting.owners)
    assert drafting.state_field("window").shape == (43, 133, 512)
    assert drafting.state_field("compress_kv").shape == (4, 7, 512)


def test_a_packed_entry_with_drafts_has_the_derived_size() -> None:
    geometry = release("fp4", "fp4", draft_tokens=5)
    assert geometry.state_field("window").num_bytes == 43 * 133 * 528
    assert geometry.state_bytes == 3_134_720


def test_rows_of_the_analysis_profile_are_four_bytes_a_channel() -> None:
    geometry = release("fp32", "fp32")
    assert (geometry.main_row_bytes, geometry.window_row_bytes, geometry.index.row_bytes) == (2048, 2048, 512)
    assert geometry.page_bytes == 640 * (2048 + 512)
    assert geometry.alignment_bytes == 2048


@pytest.mark.parametrize(
    ("main", "head_dim", "alignment"),
    [
        ("bf16", 512, 1024),
        ("bf16", 64, 256),
        ("bf16", 96, 256),
        ("bf16", 160, 320),
        ("fp4", 512, 256),
        ("fp4", 64, 256),
    ],
)
def test_entries_align_to_a_row_and_at_least_to_256_bytes(main: str, head_dim: int, alignment: int) -> None:
    assert release_with({"head_dim": head_dim}, main=main).alignment_bytes == alignment


def test_tiles_are_as_high_as_candidate_blocks() -> None:
    geometry = release_with({"candidate_block_size": 16, "candidate_topk_blocks": 1024})
    assert (geometry.index.tile_rows, geometry.index.tile_bytes) == (16, 16 * 132)


def test_the_cursor_holds_the_position_and_the_history_of_the_ngrams() -> None:
    assert release().state_field("cursor").shape == (1 + 3,)
    assert release().history_length == release_config().engram.max_ngram - 1


def test_a_request_costs_an_entry_and_whole_pages() -> None:
    geometry = release()
    assert [geometry.pages_for(tokens) for tokens in (0, 1, 256, 257)] == [0, 1, 1, 2]
    assert geometry.request_bytes(257) == geometry.state_bytes + 2 * geometry.page_bytes
    # Pitfall 103: 350,000 tokens at 2,890 bytes each, nowhere near a full-attention estimate.
    assert geometry.request_bytes(350_000) < 1.02 * GIB


def test_other_names_and_layers_are_not_found() -> None:
    with pytest.raises(KeyError):
        release().owner(3)
    with pytest.raises(KeyError):
        release().state_field("tail")


def test_a_broken_geometry_is_one_error_with_all_faults() -> None:
    with pytest.raises(ConfigError) as caught:
        pool_geometry(release_config(), pool(), block_size=8, draft_tokens=-1)
    assert "smallest legal block_size 16" in str(caught.value)
    assert "draft tokens: got -1, expected >= 0" in str(caught.value)


@given(
    pair=st.sampled_from(PAIRS),
    tiles=st.integers(1, 40),
    drafts=st.integers(0, 9),
)
@settings(deadline=None, max_examples=60)
def test_fields_and_shares_lie_behind_each_other(pair: tuple[PoolDtype, PoolDtype], tiles: int, drafts: int) -> None:
    geometry = tiny(*pair, block_size=4 * tiles, draft_tokens=drafts)
    end = 0
    for field in geometry.state_fields:
        assert field.offset_bytes == aligned(end, geometry.alignment_bytes)
        end = field.offset_bytes + field.num_bytes
    assert geometry.state_bytes == aligned(end, geometry.alignment_bytes)
    offset = 0
    for owner in geometry.owners:
        assert owner.main_row_offset == offset
        assert owner.rows_per_page * owner.ratio == geometry.block_size
        assert owner.rows_per_page % geometry.index.tile_rows == 0
        offset += owner.rows_per_page
    assert 0 <= geometry.page_main_bytes - offset * geometry.main_row_bytes < geometry.alignment_bytes
    assert geometry.page_index_bytes == offset * geometry.index.row_bytes
    assert geometry.bytes_per_token * geometry.block_size == geometry.page_bytes
    assert row_bytes(pair[0], 64) == (geometry.main_row_bytes, geometry.window_row_bytes)


def survives(ring: int, first_read: int, block: int) -> bool:
    """Whether a ring still holds position `first_read` relative to a block's start after the block was written."""
    held = {}
    start = 1000
    for position in range(start + block):
        held[position % ring] = position
    return held[(start + first_read) % ring] == start + first_read


def test_the_rings_are_the_smallest_that_survive_a_verified_block() -> None:
    expected, geometry, drafting = PUBLISHED["rings"], release(), release(draft_tokens=5)
    # The first of six rows reads back to its position - 127, or to the other member of its pair.
    for ring, first, name in ((drafting.window_ring, -127, "window"), (drafting.compressor_ring, -1, "compressor")):
        assert ring == expected[f"{name}_ring_min_for_5_drafts"]
        assert survives(ring, first, 6)
        assert not survives(ring - 1, first, 6)
        assert expected[f"{name}_ring_{ring - 1}_fails"]
    assert (geometry.window_ring, geometry.compressor_ring) == (
        expected["window_ring_no_drafts"],
        expected["compressor_ring_no_drafts"],
    )
    assert survives(geometry.window_ring, -127, 1)
    assert survives(geometry.compressor_ring, -1, 1)
