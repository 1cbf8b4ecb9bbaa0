import dataclasses
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flash41.errors import ConfigError
from flash41.parallel.sharding import (
    Cut,
    ParallelCounts,
    check_parallel,
    cut_of,
    expert_range,
    parallel_faults,
    shard,
)

RELEASE = ParallelCounts(
    num_attention_heads=64,
    index_n_heads=32,
    o_groups=8,
    moe_intermediate_size=2304,
    vocab_size=129280,
    n_routed_experts=384,
    dspark_n_routed_experts=128,
    head_dim=512,
    o_lora_rank=1024,
)


def test_the_release_admits_the_sizes_of_the_specification_and_no_other() -> None:
    assert [world for world in range(1, 65) if not parallel_faults(RELEASE, world, world)] == [1, 2, 4, 8]
    assert [world for world in range(1, 65) if not parallel_faults(RELEASE, world, 1)] == [1, 2, 4, 8]


@pytest.mark.parametrize(
    ("change", "tp", "ep", "messages"),
    [
        ({}, 0, -1, ["tensor_parallel_size: got 0, expected >= 1", "expert_parallel_size: got -1, expected >= 1"]),
        (
            {},
            3,
            1,
            [
                "num_attention_heads: got 64, expected a multiple of tensor-parallel size 3",
                "index_n_heads: got 32, expected a multiple of tensor-parallel size 3",
                "o_groups: got 8, expected a multiple of tensor-parallel size 3",
                "vocab_size: got 129280, expected a multiple of tensor-parallel size 3",
            ],
        ),
        ({}, 16, 16, ["o_groups: got 8, expected a multiple of tensor-parallel size 16"]),
        (
            {"moe_intermediate_size": 2305},
            2,
            2,
            ["moe_intermediate_size: got 2305, expected a multiple of tensor-parallel size 2"],
        ),
        (
            {},
            1,
            5,
            [
                "n_routed_experts: got 384, expected a multiple of expert-parallel size 5",
                "dspark_n_routed_experts: got 128, expected a multiple of expert-parallel size 5",
            ],
        ),
        (
            {"moe_intermediate_size": 96},
            2,
            1,
            [
                "ffn.experts.w1: cut at 48 along axis 0, expected a multiple of 32",
                "ffn.experts.w2: cut at 48 along axis 1, expected a multiple of 32",
                "ffn.experts.w3: cut at 48 along axis 0, expected a multiple of 32",
            ],
        ),
        # Whole experts are not cut.
        ({"moe_intermediate_size": 96}, 2, 2, []),
        (
            {"o_lora_rank": 16, "o_groups": 8},
            8,
            8,
            [
                "attn.wo_a: cut at 16 along axis 0, expected a multiple of 32",
                "attn.wo_b: cut at 16 along axis 1, expected a multiple of 32",
            ],
        ),
        (
            {"head_dim": 16, "num_attention_heads": 8},
            8,
            8,
            ["attn.wq_b: cut at 16 along axis 0, expected a multiple of 32"],
        ),
    ],
)
def test_every_broken_rule_is_named(change: dict[str, Any], tp: int, ep: int, messages: list[str]) -> None:
    counts = dataclasses.replace(RELEASE, **change)
    assert parallel_faults(counts, tp, ep) == messages
    if not messages:
        check_parallel(counts, tp, ep)
        return
    with pytest.raises(ConfigError) as caught:
        check_parallel(counts, tp, ep)
    assert all(message in str(caught.value) for message in messages)


@pytest.mark.parametrize(
    ("name", "cut"),
    [
        ("embed.weight", Cut.VOCAB),
        ("head.weight", Cut.VOCAB),
        ("mtp.2.markov_head.embed.weight", Cut.VOCAB),
        ("mtp.2.markov_head.head.weight", Cut.VOCAB),
        ("layers.0.attn.wq_b.weight", Cut.AXIS0),
        ("mtp.1.attn.wq_b.scale", Cut.AXIS0),
        ("layers.39.attn.attn_sink", Cut.AXIS0),
        ("layers.3.attn.wo_a.scale", Cut.AXIS0),
        ("layers.3.attn.wo_b.weight", Cut.AXIS1),
        ("layers.1.engram.embed.weight", Cut.ROWS),
        ("layers.14.engram.embed.scale", Cut.ROWS),
        ("layers.20.attn.indexer.wq_b.weight", Cut.REPLICATED),
        ("layers.20.attn.indexer.weights_proj.weight", Cut.REPLICATED),
        ("layers.2.attn.compressor.wkv.weight", Cut.REPLICATED),
        ("layers.2.ffn.gate.weight", Cut.REPLICATED),
        ("layers.2.ffn.gate.bias_vl", Cut.REPLICATED),
        ("layers.2.attn.wq_a.weight", Cut.REPLICATED),
        ("layers.2.ffn.shared_experts.w2.weight", Cut.REPLICATED),
        ("layers.1.engram.wkv.weight", Cut.REPLICATED),
        ("vision.blocks.3.attn.wo.weight", Cut.REPLICATED),
        ("mtp.0.main_proj.weight", Cut.REPLICATED),
    ],
)
def test_a_name_has_one_cut(name: str, cut: Cut) -> None:
    assert cut_of(name, expert_parallel=False) is cut
    assert cut_of(name, expert_parallel=True) is cut


def test_experts_are_whole_or_cut_inside() -> None:
    names = [f"layers.7.ffn.experts.383.w{matrix}.{part}" for matrix in (1, 2, 3) for part in ("weight", "scale")]
    assert {cut_of(name, expert_parallel=True) for name in names} == {Cut.EXPERT}
    inside = [cut_of(name, expert_parallel=False) for name in names]
    assert inside == [Cut.AXIS0, Cut.AXIS0, Cut.AXIS1, Cut.AXIS1, Cut.AXIS0, Cut.AXIS0]


def test_engram_rows_are_cut_into_equal_ranges_with_a_padded_end() -> None:
    # Bytes per rank as checkpoint.md section 6 prints them: 264 B a row, both tables.
    for world, expected in ((1, 202_758_032_400), (2, 101_379_016_200), (4, 50_689_508_232), (8, 25_344_754_248)):
        rows = [shard((size, 256), Cut.ROWS, 0, world).shape[0] for size in (384006168, 384016682)]
        assert sum(rows) * 264 == expected
    last = shard((10, 4), Cut.ROWS, 3, 4)
    assert (last.shape, last.start, last.stop, last.num_padded) == ((3, 4), 9, 10, 2)
    empty = shard((3, 4), Cut.ROWS, 3, 4)
    assert (shard((5, 4), Cut.ROWS, 3, 4).num_padded, empty.start, empty.stop, empty.num_padded) == (2, 3, 3, 1)


def test_a_whole_tensor_has_no_axis() -> None:
    for cut in (Cut.REPLICATED, Cut.EXPERT):
        whole = shard((5120,), cut, 1, 4)
        assert (whole.shape, whole.axis, whole.num_padded) == ((5120,), None, 0)


def test_an_unequal_cut_and_a_divided_block_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"^wo_a axis 0: got 10, expected a multiple of 4 ranks$"):
        shard((10, 4), Cut.AXIS0, 0, 4, "wo_a")
    with pytest.raises(ConfigError, match=r"^w2: cut at 24 along axis 1, expected a multiple of 16$"):
        shard((5120, 48), Cut.AXIS1, 0, 2, "w2", block=16)
    # An uncut tensor may have any size.
    assert shard((5120, 24), Cut.AXIS1, 0, 1, "w2", block=16).shape == (5120, 24)


def test_experts_lie_in_contiguous_ranges() -> None:
    assert expert_range(384, 1, 4) == range(96, 192)
    with pytest.raises(ConfigError, match="n_routed_experts: got 384, expected a multiple of expert-parallel size 5"):
        expert_range(384, 0, 5)


@given(st.sampled_from([Cut.AXIS0, Cut.AXIS1, Cut.VOCAB, Cut.ROWS]), st.integers(1, 9), st.integers(1, 40))
@settings(deadline=None, max_examples=150)
def test_shards_tile_the_axis_in_rank_order(cut: Cut, world: int, size: int) -> None:
    if cut is not Cut.ROWS:
        size *= world
    axis = 1 if cut is Cut.AXIS1 else 0
    shape = (3, size) if axis else (size, 3)
    shards = [shard(shape, cut, rank, world) for rank in range(world)]
    assert [index for part in shards for index in range(part.start, part.stop)] == list(range(size))
    assert len({part.shape for part in shards}) == 1
    for part in shards:
        assert part.shape[axis] == part.stop - part.start + part.num_padded
        assert part.shape[1 - axis] == 3


@given(st.integers(1, 8), st.integers(1, 50))
@settings(deadline=None, max_examples=50)
def test_expert_ranges_tile_the_ids(world: int, share: int) -> None:
    ranges = [expert_range(world * share, rank, world) for rank in range(world)]
    assert [expert for ids in ranges for expert in ids] == list(range(world * share))
