"""Shapes at every step: those of the specification for the release, and those a run has for a small model."""

import json
from typing import Any

import pytest

from flash41.checkpoint.schema import schema
from flash41.config.huggingface import config_from_dict
from flash41.tools.anatomy import Anatomy, dissect
from flash41.tools.anatomy_page.forward import forward
from flash41.tools.anatomy_page.tensors import Tensors
from helpers.config_documents import patched, tiny_text


def drawn(anatomy: Anatomy) -> dict[str, Any]:
    return forward(anatomy.config, anatomy.topology, Tensors(schema(anatomy.config)))


def outs(steps: list[dict[str, Any]]) -> dict[str, list[Any]]:
    return {step["name"]: step["out"] for step in steps}


def of_layer(document: dict[str, Any], layer_id: int) -> list[dict[str, Any]]:
    steps: list[dict[str, Any]] = document["kinds"][document["kind_of"][layer_id]]
    return steps


def test_the_release_has_the_published_shapes(release_document: dict[str, Any]) -> None:
    found = release_document["forward"]
    assert outs(found["before"]) == {"token ids": ["T"], "embed": ["T", 5120], "widen": ["T", 4, 5120]}
    assert outs(found["behind"])["head"] == ["T", 129280]
    full = outs(of_layer(found, 2))
    assert (full["qr"], full["q"], full["window row"]) == (["T", 1280], ["T", 64, 512], ["T", 512])
    assert (full["compressor"], full["index key"]) == (["T/2", 512], ["T/2", 128])
    assert (full["index q, w"], full["selection"]) == (["T", 32, 128], ["T", 512])
    assert (full["wo_a"], full["wo_b"], full["router"]) == (["T", 8192], ["T", 5120], ["T", 6])
    assert full["mHC mixes, attn"] == ["T", 24]
    assert outs(of_layer(found, 1))["Engram rows"] == ["T", 6144]
    assert outs(of_layer(found, 20))["candidate blocks"] == ["T", 2048]
    assert outs(of_layer(found, 24))["index scores"] == ["T", "n, at most 16384"]


def test_a_layer_shows_what_its_mode_adds_and_nothing_else(release_document: dict[str, Any]) -> None:
    found = release_document["forward"]
    names = {layer_id: set(outs(of_layer(found, layer_id))) for layer_id in (0, 2, 3, 20, 24, 37, 40)}
    assert {"compressor", "index key", "main row", "index scores", "selection"} <= names[2]
    assert names[2] - names[3] == {"compressor", "index key", "main row", "index q, w", "index scores"}
    assert names[24] - names[3] == {"index q, w", "index scores"}
    assert names[20] - names[2] == {"candidate blocks"}
    assert names[37] - names[3] == {"tap"}
    assert "selection" not in names[0] | names[40]


def test_layers_of_one_kind_share_their_steps(release_document: dict[str, Any]) -> None:
    kinds = release_document["forward"]["kind_of"]
    assert kinds[3] == kinds[19]
    assert kinds[2] == kinds[8]
    assert len({kinds[layer_id] for layer_id in (0, 1, 2, 3, 14, 20, 21, 24, 37, 40)}) == 10


def test_every_weight_of_a_layer_stands_at_a_step(tiny: Anatomy) -> None:
    found = drawn(tiny)
    for layer_id in (0, 1, 2, 3, 6, 8):
        shown = {weight["name"] for step in of_layer(found, layer_id) for weight in step["weights"]}
        prefix = f"layers.{layer_id}."
        stored = {
            name.removeprefix(prefix).removesuffix(".weight") for name in schema(tiny.config) if name.startswith(prefix)
        }
        wanted = {name for name in stored if not name.endswith(".scale") and ".experts." not in name}
        assert wanted - shown == set(), layer_id


def test_steps_with_weights_come_out_in_the_width_of_their_weights(release_document: dict[str, Any]) -> None:
    for layer_id in (1, 2, 20, 24):
        for step in of_layer(release_document["forward"], layer_id):
            if step["name"] in ("qr", "window row", "compressor", "index key", "wo_a", "wo_b", "attn_norm"):
                assert step["out"][-1] == step["weights"][0]["shape"][0], step["name"]


@pytest.mark.parametrize("streams", [1, 2])
def test_other_numbers_of_streams_are_drawn(streams: int) -> None:
    anatomy = dissect(config_from_dict(patched({"text_config.hc_mult": streams}, json.loads(tiny_text()))))
    found = drawn(anatomy)
    assert found["streams"] == streams
    assert outs(of_layer(found, 0))["mHC mixes, attn"] == ["T", streams * (streams + 2)]
