"""The name of a layout: whatever may change bytes or selections changes it."""

import dataclasses
from itertools import combinations
from typing import Any

import pytest

from flash41.cache import layout
from flash41.cache.geometry import PoolGeometry, pool_geometry
from flash41.cache.layout import layout_id
from flash41.config.huggingface import config_from_dict
from flash41.config.run import Draft, Profile
from flash41.errors import ConfigError
from helpers.cache_geometry import pool, release, release_with
from helpers.config_documents import text_patched

BASE: dict[str, Any] = {"model_hash": "c0ffee", "profile": Profile.VENDOR}
FEWER_LAYERS = {
    "num_hidden_layers": 39,
    "compress_ratios": [0, 0] + [2] * 18 + [1] * 19 + [0] * 3,
    "dspark_target_layer_ids": [36, 37, 38],
}
OTHER_OWNERS = {"kv_source_layer_ids": [2, 14, 20]}


def with_ngrams(longest: int) -> PoolGeometry:
    # Table sizes follow from the n-grams, so the derived config is replaced, not the document.
    config = config_from_dict(text_patched({}))
    changed = dataclasses.replace(config, engram=dataclasses.replace(config.engram, max_ngram=longest))
    return pool_geometry(changed, pool(), block_size=256)


GEOMETRIES = {
    "release": release(),
    "main": release("fp4", "fp8"),
    "index fp4": release("bf16", "fp4"),
    "index bf16": release("bf16", "bf16"),
    "layers": release_with(FEWER_LAYERS),
    "owners": release_with(OTHER_OWNERS),
    "page": release(block_size=128),
    "window": release_with({"sliding_window": 64}),
    "channels": release_with({"head_dim": 256}),
    "index channels": release_with({"index_head_dim": 64}),
    "tile": release_with({"candidate_block_size": 16, "candidate_topk_blocks": 1024}),
    "history": with_ngrams(3),
    "drafts": release(draft_tokens=5),
}
SWITCHES: dict[str, dict[str, Any]] = {
    "model": {"model_hash": "c0ffef"},
    "atom": {"profile": Profile.ATOM},
    "demo": {"profile": Profile.DEMO},
    "decoder replay": {"decoder_replay": True},
    "prefix replay": {"prefix_replay": True},
    "both replays": {"decoder_replay": True, "prefix_replay": True},
    "draft on": {"draft": Draft.ON},
    "draft adaptive": {"draft": Draft.ADAPTIVE},
}


def test_any_two_configurations_that_differ_in_one_term_have_different_names() -> None:
    # Pitfall 104: a name that forgot the index dtype let prefixes cross index formats.
    names = {
        **{name: layout_id(geometry, **BASE) for name, geometry in GEOMETRIES.items()},
        **{name: layout_id(release(), **{**BASE, **change}) for name, change in SWITCHES.items()},
    }
    for one, other in combinations(names, 2):
        assert names[one] != names[other], f"{one} and {other} share a name"


@pytest.mark.parametrize("constant", ["FORMAT_GENERATION", "ROTATION_VERSION", "ROUNDING_VERSION", "TIE_RULE"])
def test_versions_of_the_code_are_in_the_name(constant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = layout_id(release(), **BASE)
    monkeypatch.setattr(layout, constant, "other")
    assert layout_id(release(), **BASE) != before


def test_equal_configurations_have_equal_names() -> None:
    assert layout_id(release(), **BASE) == layout_id(release(), **BASE)


def test_the_name_can_be_read() -> None:
    assert layout_id(release(draft_tokens=5), **{**BASE, "draft": Draft.ON, "decoder_replay": True}) == (
        "format=rings-2;main=bf16;index=fp8;index_tile=8;layers=43;owners=2/2,8/2,14/2,20/1;page=256;window=128;"
        "channels=512;index_channels=128;history=3;draft_tokens=5;model=c0ffee;profile=vendor;replay=decoder;draft=on;"
        "rope=rope-1;rounding=qat-1;ties=smaller-position"
    )


@pytest.mark.parametrize("wrong", ["", "C0FFEE", "a;profile=demo", "xyz"])
def test_a_model_hash_that_could_forge_a_term_is_refused(wrong: str) -> None:
    with pytest.raises(ConfigError, match=r"^model hash: got .*, expected lower-case hexadecimal digits$"):
        layout_id(release(), model_hash=wrong, profile=Profile.VENDOR)
