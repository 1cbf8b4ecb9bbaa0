"""The mechanisms around attention, in numbers of the configuration."""

import json
from typing import Any

from flash41.checkpoint.schema import schema
from flash41.config.huggingface import config_from_dict
from flash41.tools.anatomy import Anatomy
from flash41.tools.anatomy_page.parts import parts
from flash41.tools.anatomy_page.tensors import Tensors
from helpers.config_documents import patched, tiny_text

BARE = {
    "num_nextn_predict_layers": 0,
    "dspark_target_layer_ids": [],
    "compress_ratios": [0, 0, 2, 2, 2, 2, 1, 1, 1, 1],
    "engram_layer_ids": [],
    "engram_num_embeddings": [],
}


def drawn(anatomy: Anatomy) -> dict[str, Any]:
    return parts(anatomy.config, Tensors(schema(anatomy.config)))


def test_the_release_has_the_published_numbers(release_document: dict[str, Any]) -> None:
    found = release_document["parts"]
    assert (found["mhc"]["num_values"], found["mhc"]["num_inputs"]) == (24, 20480)
    assert found["moe"]["per_expert"] == 35_389_440
    assert [table["rows"] for table in found["engram"]["tables"]] == [384_006_168, 384_016_682]
    assert (found["engram"]["columns"], found["engram"]["width"]) == (24, 6144)
    assert found["engram"]["tables"][0]["weights"][0]["shape"] == [384_006_168, 256]
    draft = {step["name"]: step for step in found["draft"]["steps"]}
    assert draft["taps"]["out"] == ["T", 15360]
    assert draft["confidence"]["weights"][0]["shape"] == [1, 5376]
    vision = {step["name"]: step for step in found["vision"]["steps"]}
    assert vision["patches"]["out"] == ["P", 588]
    assert vision["aligner"]["weights"][0]["shape"] == [5120, 9216]


def test_weights_named_by_steps_exist(tiny: Anatomy) -> None:
    found = drawn(tiny)
    with_weights = {step["name"] for step in found["draft"]["steps"] + found["vision"]["steps"] if step["weights"]}
    assert with_weights == {
        *("main projection", "base logits", "Markov head", "confidence"),
        *("patch embedding", "blocks", "norm", "aligner", "span"),
    }


def test_what_a_model_lacks_is_absent() -> None:
    changes = {f"text_config.{key}": value for key, value in BARE.items()}
    config = config_from_dict(patched(changes, json.loads(tiny_text())))
    found = parts(config, Tensors(schema(config)))
    assert (found["engram"], found["draft"]) == (None, None)
