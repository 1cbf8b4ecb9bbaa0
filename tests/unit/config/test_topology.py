import dataclasses
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flash41.config.architecture import ModelConfig
from flash41.config.huggingface import config_from_dict
from flash41.config.topology import LayerMode, LayerSpec, Topology, topology
from flash41.errors import ConfigError
from helpers.config_documents import release_config, text_patched, tiny_config, topology_vectors

VECTORS = topology_vectors()


def tiny_topology() -> Topology:
    # The vector's taps are the last three layers; the patch leaves them unsaid.
    return topology(config_from_dict(text_patched(VECTORS["tiny_config"] | {"dspark_target_layer_ids": [7, 8, 9]})))


def as_vector(layer: LayerSpec) -> dict[str, Any]:
    record = {
        "layer": layer.layer_id,
        "ratio": layer.ratio,
        "mode": layer.mode.name,
        "kv_owner": layer.kv_owner,
        "topk_owner": layer.topk_owner,
        "produces_candidates": layer.produces_candidates,
        "bounded_by_candidates": layer.bounded_by_candidates,
        "engram": layer.has_engram,
        "dspark_tap": layer.is_tap,
        "group_start": layer.group_start,
    }
    return record | {"draft": True} if layer.is_draft else record


def groups_as_vectors(layers: Topology) -> list[dict[str, Any]]:
    return [
        {
            "start": group[0].layer_id,
            "size": len(group),
            "ratio": group[0].ratio,
            "kv_owner": group[0].kv_owner,
            "topk_owner": group[0].topk_owner,
            "modes": [layer.mode.name for layer in group],
        }
        for group in layers.groups()
    ]


def test_release_layers_equal_the_table_of_the_specification() -> None:
    layers = topology(release_config())
    assert [as_vector(layer) for layer in (*layers.layers, *layers.drafts)] == VECTORS["layers"]


def test_release_groups_equal_the_table_of_the_specification() -> None:
    assert groups_as_vectors(topology(release_config())) == VECTORS["groups"]


def test_release_counts_every_mode_as_the_specification_does() -> None:
    layers = topology(release_config())
    counts = {mode.name: sum(layer.mode is mode for layer in layers.layers) for mode in LayerMode}
    assert counts | {"draft_WINDOW": len(layers.drafts)} == VECTORS["counts"]


def test_tiny_topology_equals_its_table() -> None:
    layers = tiny_topology()
    assert [as_vector(layer) for layer in (*layers.layers, *layers.drafts)] == VECTORS["tiny_layers"]
    assert groups_as_vectors(layers) == VECTORS["tiny_groups"]


def test_golden_checkpoint_has_the_tiny_topology() -> None:
    assert topology(tiny_config()) == tiny_topology()


def test_owner_lists_are_read_off_the_modes() -> None:
    layers = topology(release_config())
    assert layers.kv_owners == (2, 8, 14, 20)
    assert layers.scorers == (2, 8, 14, 20, 24, 28, 32, 36)
    assert layers.taps == (37, 38, 39)


def test_only_full_layers_write_and_full_and_reindex_layers_score() -> None:
    for layer in topology(release_config()).layers:
        assert layer.writes_plane == (layer.mode.name == "FULL")
        assert layer.scores == (layer.mode.name in {"FULL", "REINDEX"})


@pytest.mark.parametrize("patch", [entry["patch"] for entry in VECTORS["valid_patches"]], ids=str)
def test_patches_at_the_edge_of_a_rule_are_accepted(patch: dict[str, Any]) -> None:
    topology(config_from_dict(text_patched(patch)))


def test_without_a_candidate_source_nothing_is_bounded() -> None:
    layers = topology(config_from_dict(text_patched({"candidate_source_layer_id": -1}))).layers
    assert not any(layer.produces_candidates or layer.bounded_by_candidates for layer in layers)


def test_window_layer_inside_a_run_leaves_the_registers_alone() -> None:
    ratios = [0, 0, *[2] * 18, *[1] * 20, 0, 0, 0]
    ratios[5] = 0
    layers = topology(config_from_dict(text_patched({"compress_ratios": ratios}))).layers
    assert (layers[5].mode, layers[5].kv_owner, layers[5].topk_owner) == (LayerMode.WINDOW, None, None)
    assert (layers[6].mode, layers[6].kv_owner, layers[6].group_start) == (LayerMode.REUSE, 2, 6)


@st.composite
def valid_configs(draw: st.DrawFn) -> ModelConfig:
    """The golden checkpoint's configuration with random layer lists that keep every rule."""
    ratios: list[int] = [0] * draw(st.integers(0, 3))
    kv_sources: list[int] = []
    for _ in range(draw(st.integers(1, 4))):
        kv_sources.append(len(ratios))
        ratios += [draw(st.sampled_from([1, 2]))]
        # A window layer between compressed ones belongs to nobody.
        ratios += draw(st.lists(st.sampled_from([0, ratios[-1]]), max_size=4))
    num_layers = len(ratios)
    compressed = [layer for layer, ratio in enumerate(ratios) if ratio]
    extra = draw(st.sets(st.sampled_from(compressed)))
    index_sources = sorted({*kv_sources, *extra})
    # T12: only the last owner's scorers may bound the ones behind them.
    candidates = [layer for layer in index_sources if layer >= kv_sources[-1]]
    source = draw(st.one_of(st.none(), st.sampled_from(candidates)))
    engram = sorted(draw(st.sets(st.integers(0, num_layers - 1), max_size=2)))
    free = [layer for layer in range(num_layers) if layer not in engram]
    taps = sorted(draw(st.sets(st.sampled_from(free), max_size=3))) if free else []
    num_stages = draw(st.integers(0, 3)) if taps else 0  # draft stages read at least one layer
    base = tiny_config()
    rows = {0: (), 1: base.engram.table_rows[:1], 2: base.engram.table_rows}[len(engram)]
    return dataclasses.replace(
        base,
        num_layers=num_layers,
        attention=dataclasses.replace(
            base.attention,
            compress_ratios=(*ratios, *[0] * num_stages),
            kv_source_layer_ids=tuple(kv_sources),
            index_source_layer_ids=tuple(index_sources),
        ),
        indexer=dataclasses.replace(base.indexer, candidate_source_layer_id=source),
        engram=dataclasses.replace(base.engram, layer_ids=tuple(engram), table_rows=rows),
        dspark=dataclasses.replace(base.dspark, num_stages=num_stages, target_layer_ids=tuple(taps)),
    )


def register_walk(config: ModelConfig) -> list[tuple[int | None, int | None, str]]:
    """Section 5.1 word by word, as an oracle for the closed form."""
    kv_owner: int | None = None
    topk_owner: int | None = None
    result: list[tuple[int | None, int | None, str]] = []
    for layer, ratio in enumerate(config.attention.compress_ratios[: config.num_layers]):
        if ratio == 0:
            result.append((None, None, "WINDOW"))
            continue
        if layer in config.attention.kv_source_layer_ids:
            kv_owner = layer
        if layer in config.attention.index_source_layer_ids:
            topk_owner = layer
        mode = "FULL" if layer == kv_owner else "REINDEX" if layer == topk_owner else "REUSE"
        result.append((kv_owner, topk_owner, mode))
    return result


@given(valid_configs())
@settings(deadline=None, max_examples=150)
def test_random_valid_lists_are_accepted_and_equal_the_walk(config: ModelConfig) -> None:
    layers = topology(config)
    found = [(layer.kv_owner, layer.topk_owner, layer.mode.name) for layer in layers.layers]
    assert found == register_walk(config)
    assert layers.kv_owners == config.attention.kv_source_layer_ids
    assert layers.scorers == config.attention.index_source_layer_ids
    assert len(layers.drafts) == config.dspark.num_stages


@given(valid_configs())
@settings(deadline=None, max_examples=100)
def test_groups_are_maximal_runs_that_cover_every_layer(config: ModelConfig) -> None:
    layers = topology(config)
    groups = layers.groups()
    assert [layer for group in groups for layer in group] == [*layers.layers, *layers.drafts]
    for group in groups:
        assert len({(layer.ratio, layer.kv_owner, layer.topk_owner, layer.is_draft) for layer in group}) == 1
        assert {layer.group_start for layer in group} == {group[0].layer_id}
    for left, right in pairwise(groups):
        keys = [(group[-1].ratio, group[-1].kv_owner, group[-1].topk_owner) for group in (left, right)]
        assert keys[0] != keys[1] or right[0].is_draft


@given(valid_configs(), st.data())
@settings(deadline=None, max_examples=200)
def test_one_changed_entry_is_refused_or_leaves_a_topology_that_reads_its_own_rows(
    config: ModelConfig, data: st.DataObject
) -> None:
    name = data.draw(st.sampled_from(["compress_ratios", "kv_source_layer_ids", "index_source_layer_ids"]))
    values = list(getattr(config.attention, name))
    values[data.draw(st.integers(0, len(values) - 1))] = data.draw(st.integers(-1, config.num_layers + 1))
    mutated = dataclasses.replace(config, attention=dataclasses.replace(config.attention, **{name: tuple(values)}))
    try:
        layers = topology(mutated)
    except ConfigError:
        return
    by_id = {layer.layer_id: layer for layer in layers.layers}
    for layer in layers.layers:
        if layer.mode is LayerMode.WINDOW:
            continue
        assert layer.kv_owner is not None
        assert layer.topk_owner is not None
        assert layer.kv_owner <= layer.topk_owner <= layer.layer_id
        assert by_id[layer.kv_owner].ratio == layer.ratio
        assert by_id[layer.kv_owner].writes_plane
        assert by_id[layer.topk_owner].kv_owner == layer.kv_owner
        if layer.bounded_by_candidates:
            source = next(other for other in layers.layers if other.produces_candidates)
            assert source.kv_owner == layer.kv_owner
