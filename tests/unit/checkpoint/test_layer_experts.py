from collections.abc import Sequence
from concurrent.futures import Future

import pytest
import torch

from flash41.checkpoint import layer_experts
from flash41.checkpoint.directory import open_directory
from flash41.checkpoint.layer_experts import LayerExperts
from flash41.checkpoint.loader import open_checkpoint
from flash41.checkpoint.mapped_weights import MappedWeights
from flash41.checkpoint.presence import Presence
from flash41.checkpoint.read_ahead import Extent, ReadAhead
from flash41.checkpoint.reader import MappedShards
from flash41.checkpoint.residence import weight_sizes
from flash41.checkpoint.stored import Scope
from flash41.numerics.scaled import Quantized
from helpers.checkpoints import TINY
from helpers.config_documents import tiny_config

PREFIX = "layers.2.ffn.experts"
SIZES = weight_sizes(tiny_config(), [Scope.BACKBONE])


class Absent(Presence):
    """Nothing is in memory."""

    def missing_bytes(self, address: int, num_bytes: int) -> int:  # noqa: ARG002
        return num_bytes


class Asked(ReadAhead):
    """Notes what is asked for; nothing ever comes."""

    def __init__(self) -> None:
        super().__init__()
        self.num_bytes: list[int] = []
        self.futures: list[Future[None]] = []

    def request(self, extents: Sequence[Extent]) -> list[Future[None]]:
        self.num_bytes.append(sum(extent.num_bytes for extent in extents))
        self.futures.append(Future())
        return [self.futures[-1]]


def layer(num_places: int, presence: Presence | None = None, ahead: ReadAhead | None = None) -> LayerExperts:
    places = torch.zeros(num_places, SIZES.one_expert_bytes, dtype=torch.uint8)
    shards = MappedShards(open_directory(TINY))
    return LayerExperts(shards, PREFIX, places, presence or Absent(), ahead or Asked())


def mapped(expert_id: int) -> list[Quantized]:
    checkpoint = open_checkpoint(TINY, [Scope.BACKBONE])
    return [checkpoint.quantized(f"{PREFIX}.{expert_id}.{matrix}") for matrix in ("w1", "w3", "w2")]


def test_an_expert_in_memory_has_the_bytes_of_its_mapping() -> None:
    experts = layer(2)
    assert experts.held(1, mapped(1)) is None
    assert experts.want([1, 3]) == [1, 3]
    for expert_id in (1, 3):
        stored = mapped(expert_id)
        held = experts.held(expert_id, stored)
        assert held is not None
        for one, other in zip(held, stored, strict=True):
            assert torch.equal(one.codes, other.codes)
            assert torch.equal(one.scales, other.scales)
            assert one.codes.data_ptr() != other.codes.data_ptr()


def test_whoever_lost_or_won_a_place_is_named() -> None:
    experts = layer(1)
    experts.want([1])
    changed = [experts.want([2]) for _ in range(3)]
    assert [pair for pair in changed if pair] == [[2, 1]]
    assert experts.held(1, mapped(1)) is None
    assert (experts.counts.num_hot, experts.counts.num_moves) == (1, 2)


def test_missing_experts_are_asked_for_whole_and_those_in_memory_are_hits() -> None:
    asked = Asked()
    experts = layer(1, ahead=asked)
    experts.want([1, 2])
    experts.want([1])
    assert asked.num_bytes == [SIZES.one_expert_bytes] * 2
    counts = experts.counts
    assert (counts.num_hits, counts.num_misses, counts.read_bytes) == (1, 2, 2 * SIZES.one_expert_bytes)


def test_present_experts_are_hits_and_nobody_is_asked() -> None:
    asked = Asked()
    experts = layer(0, presence=Presence(), ahead=asked)
    for name in (f"{PREFIX}.0.{matrix}.{part}" for matrix in ("w1", "w3", "w2") for part in ("weight", "scale")):
        MappedShards(open_directory(TINY)).tensor(name).sum()  # read: now they are in the page cache
    experts.want([0])
    experts.expect([0])
    assert (experts.counts.num_hits, experts.counts.num_expected, asked.num_bytes) == (1, 0, [])
    assert not experts.expects


def test_an_expected_expert_is_a_hit_and_one_expected_in_vain_is_taken_back() -> None:
    asked = Asked()
    experts = layer(0, ahead=asked)
    experts.want([5])
    assert experts.expects
    experts.expect([1, 2])
    experts.want([1, 3])
    assert [future.cancelled() for future in asked.futures] == [False, False, True, False]
    counts = experts.counts
    assert (counts.num_expected, counts.num_right, counts.num_hits, counts.num_misses) == (2, 1, 1, 2)


@pytest.mark.parametrize(("right", "goes_on"), [(True, True), (False, False)])
def test_expecting_stops_where_it_does_not_pay_and_is_tried_again_later(right: bool, goes_on: bool) -> None:
    experts = layer(0)
    for _ in range(layer_experts.TRIAL):
        experts.expect([1])
        experts.want([1 if right else 2])
    assert experts.expects is goes_on
    for _ in range(layer_experts.PAUSE):
        experts.want([2])
    assert experts.expects


def test_without_a_miss_for_some_time_nothing_is_expected() -> None:
    experts = layer(1)
    experts.want([1, 2])
    for _ in range(layer_experts.RECENT):
        assert experts.expects
        experts.want([1])
    assert not experts.expects


def test_memory_is_shared_among_layers_and_the_rest_goes_to_the_first() -> None:
    shards = MappedShards(open_directory(TINY))
    count = 2 * SIZES.num_expert_layers + 3
    keeper = MappedWeights(shards, SIZES, count * SIZES.one_expert_bytes + 1)
    for layer_id in range(SIZES.num_expert_layers):
        keeper.layer(f"layers.{layer_id}.ffn.experts").want(range(4))
    held = [found.counts.num_hot for found in keeper.layers]
    assert held == [3, 3, 3] + [2] * (SIZES.num_expert_layers - 3)
    assert keeper.layers[1].counts.layer == "layers.1"
