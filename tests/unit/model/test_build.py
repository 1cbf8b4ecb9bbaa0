import json
from typing import Any

from flash41.config.huggingface import config_from_dict
from flash41.config.topology import Topology, topology
from flash41.model.build import published_last
from helpers.config_documents import patched, release_config, tiny_text


def layers(ratios: list[int], owners: list[int]) -> Topology:
    text: dict[str, Any] = {
        "num_hidden_layers": len(ratios),
        "num_nextn_predict_layers": 0,
        "compress_ratios": ratios,
        "kv_source_layer_ids": owners,
        "index_source_layer_ids": owners,
        "candidate_source_layer_id": -1,
        "engram_layer_ids": [],
        "engram_num_embeddings": [],
        "dspark_target_layer_ids": [],
    }
    patch = {f"text_config.{key}": value for key, value in text.items()}
    return topology(config_from_dict(patched(patch, json.loads(tiny_text()))))


def test_a_stale_scorer_of_the_release_finds_the_keys_of_layer_20() -> None:
    release = topology(release_config())
    assert [published_last(release, layer_id) for layer_id in (2, 8, 14)] == [20, 20, 20]


def test_a_stale_scorer_behind_an_owner_of_ratio_one_finds_the_keys_made_for_its_own_token() -> None:
    mixed = layers([2, 1, 2, 1, 2], [0, 1, 2, 3, 4])
    assert [published_last(mixed, layer_id) for layer_id in (0, 2, 4)] == [4, 1, 3]


def test_without_an_owner_of_ratio_one_the_last_owner_published_last() -> None:
    assert published_last(layers([2, 2, 2], [0, 1, 2]), 1) == 2
