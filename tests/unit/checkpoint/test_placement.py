import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flash41.checkpoint.placement import Placement, encode_header, encode_index, place_below, place_in
from flash41.checkpoint.schema import schema
from flash41.checkpoint.stored import TensorSpec
from flash41.errors import ConfigError
from helpers.config_documents import release_config, tiny_config

TINY = schema(tiny_config())


def payload(specs: tuple[TensorSpec, ...]) -> int:
    return sum(spec.num_bytes for spec in specs)


def names(placement: Placement) -> list[str]:
    return [spec.name for specs in placement.values() for spec in specs]


def is_engram(name: str) -> bool:
    return ".engram." in name


def test_the_release_fills_46_shards_in_order_and_two_with_engram() -> None:
    specs = schema(release_config())
    placement = place_in(48, specs.values())
    shards = list(placement)
    assert shards[0] == "model-00001-of-00048.safetensors"
    assert len(shards) == 48
    for shard, layer_id in ((shards[46], 1), (shards[47], 14)):
        assert sorted(spec.name for spec in placement[shard]) == sorted(
            name for name in specs if name.startswith(f"layers.{layer_id}.engram.")
        )
        assert len(placement[shard]) == 6
    order = {name: number for number, name in enumerate(name for name in specs if not is_engram(name))}
    last = -1
    for shard in shards[:46]:
        positions = sorted(order[spec.name] for spec in placement[shard])
        assert positions == list(range(last + 1, last + 1 + len(positions))), shard
        last = positions[-1]
    sizes = [payload(placement[shard]) for shard in shards[:46]]
    assert max(sizes) < 1.25 * min(sizes)
    assert sum(map(payload, placement.values())) == 510_286_023_000


@settings(max_examples=40, deadline=None)
@given(num_shards=st.integers(3, 40))
def test_any_number_of_shards_holds_every_tensor_once(num_shards: int) -> None:
    placement = place_in(num_shards, TINY.values())
    assert len(placement) == num_shards
    assert sorted(names(placement)) == sorted(TINY)


@settings(max_examples=40, deadline=None)
@given(limit=st.integers(1, 3_000_000))
def test_shards_stay_below_the_limit_unless_they_cannot(limit: int) -> None:
    placement = place_below(limit, TINY.values())
    assert sorted(names(placement)) == sorted(TINY)
    for specs in placement.values():
        assert payload(specs) <= limit or len(specs) == 1 or all(is_engram(spec.name) for spec in specs)


def test_one_shard_is_a_single_file() -> None:
    assert list(place_in(1, TINY.values())) == ["model.safetensors"]
    assert list(place_below(10**9, TINY.values())) == ["model.safetensors"]


@pytest.mark.parametrize("num_shards", [-1, 0, 2, 10_000])
def test_numbers_of_shards_that_cannot_be_are_refused(num_shards: int) -> None:
    with pytest.raises(ConfigError, match=f"number of shards: got {num_shards}"):
        place_in(num_shards, TINY.values())


def test_a_limit_below_one_byte_is_refused() -> None:
    with pytest.raises(ConfigError, match="bytes of a shard"):
        place_below(0, TINY.values())


def test_every_tensor_is_aligned_to_its_element() -> None:
    for specs in place_in(5, TINY.values()).values():
        raw = encode_header(specs, {"format": "pt"})
        assert len(raw) % 8 == 0
        for name, entry in json.loads(raw[8:]).items():
            if name != "__metadata__":
                assert entry["data_offsets"][0] % TINY[name].dtype.element_bytes == 0, name


def test_the_index_is_sorted_and_counts_payload() -> None:
    document = json.loads(encode_index(place_in(5, TINY.values())))
    assert document["metadata"] == {"total_size": 6_717_760}
    assert list(document["weight_map"]) == sorted(TINY)
