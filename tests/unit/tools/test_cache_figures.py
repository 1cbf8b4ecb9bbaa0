import dataclasses
import json
from typing import Any

from flash41.config.run import PoolDtype
from flash41.tools.cache_figures import cache_figures, pool_pairs
from helpers.cache_geometry import published
from helpers.config_documents import release_config, tiny_config


def pools(document: dict[str, Any]) -> dict[tuple[str, str, int], dict[str, Any]]:
    return {(one["main"], one["index"], one["draft_tokens"]): one for one in document["pools"]}


def test_the_figures_of_the_release_are_the_published_ones() -> None:
    found = pools(json.loads(json.dumps(cache_figures(release_config()).to_dict())))
    for case in published()["pools"]:
        figures = found[case["main"], case["index"], case["draft_tokens"]]
        for name, key in (
            ("page_bytes", "page"),
            ("page_main_bytes", "page_main"),
            ("page_index_bytes", "page_index"),
            ("main_row_bytes", "main_row"),
            ("window_row_bytes", "window_row"),
            ("index_row_bytes", "index_row"),
            ("bytes_per_token", "bytes_per_token"),
            ("state_fields", "state_fields"),
            ("state_bytes", "state"),
            ("image_pages", "image_pages"),
            ("window_ring", "window_ring"),
            ("compressor_ring", "compressor_ring"),
        ):
            assert figures[name] == case[key], name


def test_capacity_is_told_as_state_and_tokens_apart() -> None:
    figures = pools(cache_figures(release_config()).to_dict())["fp4", "fp4", 0]
    assert figures["request"] == "2,736,384 + 890 * tokens bytes"
    assert figures["longest_request_bytes"] == 2_736_384 + 890 * 2**20


def test_every_pair_some_profile_allows_is_shown_once() -> None:
    pairs = pool_pairs(drafting=False)
    assert len(pairs) == len(set(pairs)) == 7
    # Rule S4: the FP8 index belongs to profile atom, which drafts with a BF16 main pool only.
    gone = set(pairs) - set(pool_pairs(drafting=True))
    assert [(pool.main, pool.index) for pool in gone] == [(PoolDtype.FP4, PoolDtype.FP8)]
    shown = [(geometry.pool, geometry.draft_tokens) for geometry in cache_figures(tiny_config()).geometries]
    assert len(shown) == len(set(shown)) == 7 + 6


def test_a_model_without_draft_stages_has_no_figures_with_drafts() -> None:
    config = release_config()
    plain = dataclasses.replace(config, dspark=dataclasses.replace(config.dspark, num_stages=0))
    assert {geometry.draft_tokens for geometry in cache_figures(plain).geometries} == {0}


def test_a_page_size_that_cannot_be_laid_out_is_told_once_and_shows_nothing() -> None:
    figures = cache_figures(release_config(), block_size=8)
    assert figures.geometries == ()
    assert figures.faults == (
        "block_size: got 8, expected rows per PAGE in whole tiles of 8; smallest legal block_size 16",
    )
    assert figures.to_dict()["faults"] == list(figures.faults)


def test_a_width_without_whole_scales_is_told_and_the_rest_of_the_model_still_shown() -> None:
    config = tiny_config()
    odd = dataclasses.replace(config, attention=dataclasses.replace(config.attention, head_dim=48))
    assert cache_figures(odd).faults == ("head_dim: got 48, expected a positive multiple of 32",)


def test_a_rate_that_is_no_integer_is_a_number_all_the_same() -> None:
    document = pools(cache_figures(tiny_config(), block_size=12).to_dict())
    rate = document["fp4", "fp4", 0]["bytes_per_token"]
    assert rate * 12 == document["fp4", "fp4", 0]["page_bytes"]
    assert isinstance(rate, float)
