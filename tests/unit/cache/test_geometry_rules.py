"""Rules G1 to G7, with their wording."""

import dataclasses
from typing import Any

import pytest

from flash41.cache.geometry_rules import (
    GeometryInputs,
    check_geometry,
    check_tile_rows,
    check_whole_rows,
    geometry_faults,
    geometry_inputs,
    smallest_block_size,
)
from flash41.errors import ConfigError
from helpers.cache_geometry import PAIRS, pool
from helpers.config_documents import release_config

RELEASE = geometry_inputs(release_config(), pool(), 256, 5)


def changed(**changes: Any) -> GeometryInputs:
    return dataclasses.replace(RELEASE, **changes)


@pytest.mark.parametrize("pair", PAIRS)
def test_the_release_breaks_no_rule_with_any_pool(pair: tuple[Any, Any]) -> None:
    assert geometry_faults(changed(pool=pool(*pair))) == []


@pytest.mark.parametrize(
    ("changes", "messages"),
    [
        ({"channels": 0}, ["head_dim: got 0, expected a positive multiple of 32"]),
        ({"channels": 500}, ["head_dim: got 500, expected a positive multiple of 32"]),
        ({"index_channels": -32}, ["index_head_dim: got -32, expected a positive multiple of 32"]),
        ({"owners": (2, 2)}, ["owners: got [2, 2], expected unique layers of ratio 1 or 2"]),
        ({"owners": (2, 40)}, ["owners: got [2, 40], expected unique layers of ratio 1 or 2"]),
        ({"owners": (-1,)}, ["owners: got [-1], expected unique layers of ratio 1 or 2"]),
        ({"owners": (0, 2)}, ["owners: got [0, 2], expected unique layers of ratio 1 or 2"]),
        ({"owners": ()}, ["owners: got [], expected unique layers of ratio 1 or 2"]),
        ({"block_size": 0}, ["block_size: got 0, expected > 0"]),
        (
            {"block_size": 8},
            ["block_size: got 8, expected rows per PAGE in whole tiles of 8; smallest legal block_size 16"],
        ),
        (
            {"block_size": 17},
            [
                "block_size: got 17, expected a multiple of ratio 2",
                "block_size: got 17, expected rows per PAGE in whole tiles of 8; smallest legal block_size 16",
            ],
        ),
        (
            {"block_size": 16, "tile_rows": 16},
            ["block_size: got 16, expected rows per PAGE in whole tiles of 16; smallest legal block_size 32"],
        ),
        ({"tile_rows": 0}, ["candidate_block_size: got 0, expected > 0"]),
        ({"draft_tokens": -5}, ["draft tokens: got -5, expected >= 0"]),
        (
            {"channels": 1, "owners": (1,), "draft_tokens": -1},
            [
                "head_dim: got 1, expected a positive multiple of 32",
                "owners: got [1], expected unique layers of ratio 1 or 2",
                "draft tokens: got -1, expected >= 0",
            ],
        ),
        (
            {"tile_rows": 3, "block_size": 6},
            [
                "index_head_dim: got 128, expected a multiple of the tile's 3 rows "
                "(an FP8 tile interleaves as many channels as it has rows)",
            ],
        ),
    ],
)
def test_each_rule_says_what_it_found_and_expected(changes: dict[str, Any], messages: list[str]) -> None:
    assert geometry_faults(changed(**changes)) == messages


def test_there_is_no_fp8_main_pool() -> None:
    (fault,) = geometry_faults(changed(pool=pool("fp8", "fp8")))
    assert fault == "kv_cache_dtype: got 'fp8', expected 'bf16' or 'fp4' (there is no FP8 main pool)"


def test_tiles_bind_only_where_somebody_reads_tiles() -> None:
    free = changed(block_size=6, has_candidates=False, pool=pool("bf16", "fp4"))
    assert geometry_faults(free) == []
    assert geometry_faults(dataclasses.replace(free, has_candidates=True))
    assert geometry_faults(dataclasses.replace(free, pool=pool("bf16", "fp8")))


@pytest.mark.parametrize(("tile", "ratios", "size"), [(8, (1, 2), 16), (16, (1, 2), 32), (8, (1,), 8), (3, (1,), 6)])
def test_the_smallest_page_holds_whole_tiles_of_every_owner(tile: int, ratios: tuple[int, ...], size: int) -> None:
    assert smallest_block_size(tile, ratios) == size


def test_a_single_fault_has_no_heading_and_several_are_counted() -> None:
    with pytest.raises(ConfigError, match=r"^draft tokens: got -1, expected >= 0$"):
        check_geometry(changed(draft_tokens=-1))
    with pytest.raises(ConfigError, match=r"^cache geometry: 2 faults\n"):
        check_geometry(changed(draft_tokens=-1, channels=8))
    check_geometry(RELEASE)


def test_a_backend_may_demand_rows_of_whole_units() -> None:
    check_whole_rows(1024)
    with pytest.raises(ConfigError, match=r"^main row: got 128 bytes, expected a multiple of 256$"):
        check_whole_rows(128)


def test_a_backend_with_tiles_of_its_own_must_match_the_candidate_list() -> None:
    check_tile_rows(8, 8)
    with pytest.raises(ConfigError, match=r"^index tile: got 16 rows, expected candidate_block_size 8$"):
        check_tile_rows(16, 8)
