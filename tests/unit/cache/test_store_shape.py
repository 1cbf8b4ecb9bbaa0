from flash41.cache.store_shape import store_shape
from helpers.cache_geometry import release
from helpers.config_documents import release_config, tiny_config
from helpers.tensors import vectors


def test_the_shape_of_a_store_comes_from_the_model() -> None:
    release = store_shape(release_config(), 2, 1000)
    assert (release.window, release.ring, release.channels, release.index_channels) == (128, 128, 512, 128)
    assert (release.num_layers, release.member_depth) == (40, 2)
    assert release.owner_ratios == {2: 2, 8: 2, 14: 2, 20: 1}
    tiny = store_shape(tiny_config(), 2, 1000)
    assert set(tiny.owner_ratios) == set(tiny_config().attention.kv_source_layer_ids)


def test_drafting_gives_the_release_rings_of_133_and_7_and_windows_for_its_stages() -> None:
    constants = vectors("dspark")["constants"]
    plain, drafting = (store_shape(release_config(), 1, 1, drafts) for drafts in (0, 5))
    assert (plain.ring, plain.member_depth, plain.num_layers, plain.revocable) == (128, 2, 40, 0)
    assert (
        (drafting.ring, drafting.member_depth) == (constants["window_ring"], constants["compressor_ring"]) == (133, 7)
    )
    assert (drafting.num_layers, drafting.revocable, drafting.window) == (43, constants["block"], 128)
    geometry = release(draft_tokens=5)
    assert (geometry.num_layers, geometry.window_ring, geometry.compressor_ring) == (43, 133, 7)
