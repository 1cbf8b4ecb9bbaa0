import pytest

from flash41.config.slices import SliceWish, kept_layers, sliced
from flash41.config.topology import topology
from flash41.errors import ConfigError
from helpers.config_documents import release_config, tiny_config


def test_four_layers_of_the_release_have_all_modes_and_share_one_plane() -> None:
    assert kept_layers(release_config(), 4) == (0, 20, 21, 24)


def test_a_single_layer_is_the_source_of_the_candidates() -> None:
    config = sliced(release_config(), SliceWish(layers=1, experts=6))
    (layer,) = topology(config).layers
    assert layer.produces_candidates
    assert layer.mode.value == "FULL"


@pytest.mark.parametrize("count", range(1, 41))
def test_every_layer_of_a_slice_is_what_it_is_in_the_model(count: int) -> None:
    whole = topology(release_config()).layers
    kept = kept_layers(release_config(), count)
    found = topology(sliced(release_config(), SliceWish(layers=count, experts=384))).layers
    assert len(found) == len(kept) == count
    for layer_id, layer in zip(kept, found, strict=True):
        assert (layer.mode, layer.ratio) == (whole[layer_id].mode, whole[layer_id].ratio)
        if layer.kv_owner is not None:
            assert kept[layer.kv_owner] == whole[layer_id].kv_owner


def test_widths_stay_and_parts_that_were_not_asked_for_go() -> None:
    release = release_config()
    config = sliced(release, SliceWish(layers=3, experts=8))
    assert (config.hidden_size, config.vocab_size, config.rope) == (5120, 129280, release.rope)
    assert config.moe.intermediate_size == 2304
    assert (config.moe.num_experts, config.moe.num_experts_per_token) == (8, 6)
    assert config.engram.layer_ids == config.engram.table_rows == ()
    assert (config.dspark.num_stages, config.vision.num_layers) == (0, 1)


def test_a_table_has_about_the_rows_asked_for_and_lies_in_front_of_the_second_layer() -> None:
    engram = sliced(release_config(), SliceWish(layers=2, experts=6, engram_rows=48_000)).engram
    assert engram.layer_ids == (1,)
    assert 48_000 <= engram.table_rows[0] <= 52_000


def test_all_sizes_out_of_range_are_listed_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        sliced(release_config(), SliceWish(layers=41, experts=5, engram_rows=100))
    for part in (
        "layers of a slice: got 41",
        "experts of a slice: got 5, expected 6",
        "engram rows of a slice: got 100",
    ):
        assert part in str(caught.value)


def test_a_model_without_tables_has_no_rows_to_give() -> None:
    bare = sliced(tiny_config(), SliceWish(layers=2, experts=4))
    with pytest.raises(ConfigError, match="engram rows of a slice: got 500"):
        sliced(bare, SliceWish(layers=2, experts=4, engram_rows=500))
