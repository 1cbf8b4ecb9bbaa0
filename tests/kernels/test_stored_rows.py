"""Attention and index scores over rows where they lie: the bits of the same rows as a BF16 tensor.

spec: cache.md section 2, number-formats.md sections 9 and 10.
"""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from flash41.cache.index_layout import index_layout
from flash41.cache.pool import StridedRows, TiledRows
from flash41.cache.rows import RowBuffer, RowCodec
from flash41.cache.store import Buffer
from flash41.config.run import PoolDtype
from flash41.kernels.interface import Kernels
from flash41.numerics.scaled import fake_fp4_32
from flash41.numerics.stored_rows import PACKED, PagedRows, RowFormat, RowStack, StoredRows
from helpers.pool_rows import random_rows, row_values
from helpers.tensors import assert_close, assert_rows_stand_alone, normal

HEADS, NUM_ROWS, OWN = 5, 90, 20
BF16_FORMATS = [one for one in RowFormat if one is not RowFormat.FP32]
each_format = pytest.mark.parametrize("row_format", BF16_FORMATS, ids=lambda one: one.value)
widths = pytest.mark.parametrize("width", [64, 96, 512])


def buffers(row_format: RowFormat, width: int, seed: int = 0) -> tuple[Tensor, list[Buffer]]:
    """The same rows as a tensor, and in every arrangement a cache has for their format."""
    rows, codec = random_rows(row_format, NUM_ROWS, width, seed), RowCodec(row_format, width)
    row_bytes, behind = codec.code_bytes + codec.scale_bytes, 64
    records = torch.zeros(9, 10 * row_bytes + behind, dtype=torch.uint8)
    strided = records.as_strided((9, 10, row_bytes), (records.stride(0), row_bytes, 1))
    found: list[Buffer] = [RowBuffer(NUM_ROWS, width, row_format)]
    if row_format is not RowFormat.FP8_ROW:
        found.append(StridedRows(strided, codec))
    else:
        layout = index_layout(PoolDtype.FP8, width, 8)
        found.append(TiledRows(torch.zeros(96 * layout.row_bytes, dtype=torch.uint8), layout, codec))
    for buffer in found:
        buffer.write(torch.arange(NUM_ROWS), rows)
    return row_values(rows), found


@each_format
@widths
def test_attention_reads_a_plane_as_it_reads_its_values(kernels: Kernels, row_format: RowFormat, width: int) -> None:
    values, planes = buffers(row_format, width)
    q, own = normal(4, HEADS, width, seed=1), normal(OWN, width, seed=2)
    index = torch.randint(0, OWN + NUM_ROWS, (4, 80), generator=torch.Generator().manual_seed(3))
    counts, sink = torch.tensor([0, 1, 65, 80]), torch.tensor([0.0, 1.0, -1.0, 3.0, -4.0])
    expected = kernels.sparse_attention(q, torch.cat((own, values)), index, counts, sink, width**-0.5)
    for plane in planes:
        stack = RowStack(own=own, plane=plane.rows)
        assert torch.equal(kernels.sparse_attention(q, stack, index, counts, sink, width**-0.5), expected)


@each_format
@widths
def test_scores_of_a_plane_are_those_of_its_values(kernels: Kernels, row_format: RowFormat, width: int) -> None:
    values, planes = buffers(row_format, width)
    pages, rows_per_page, num_rows = torch.tensor([[4, 1, 8], [0, 3, 7]]), 10, 27
    numbers = (pages.unsqueeze(2) * rows_per_page + torch.arange(rows_per_page)).flatten(1)[:, :num_rows]
    q = fake_fp4_32(normal(2, 3, HEADS, width, seed=1))
    weights = normal(2, 3, HEADS, seed=2, dtype=torch.float32)
    expected = kernels.index_scores(q, values[numbers], weights)
    for plane in planes:
        keys = PagedRows(rows=plane.rows, pages=pages, rows_per_page=rows_per_page, num_rows=num_rows)
        assert torch.equal(keys.read(), values[numbers])
        assert torch.equal(kernels.index_scores(q, keys, weights), expected)
        chain = kernels.index_scores_bf16_chain(q, keys, weights)
        assert torch.equal(chain, kernels.index_scores_bf16_chain(q, values[numbers], weights))


def test_rows_of_an_fp32_pool_are_read_where_they_lie(kernels: Kernels) -> None:
    values, planes = buffers(RowFormat.FP32, 48)
    q, own = normal(3, HEADS, 48, seed=1, dtype=torch.float32), normal(OWN, 48, seed=2, dtype=torch.float32)
    index, counts = torch.arange(90).remainder(OWN + NUM_ROWS).repeat(3, 1), torch.tensor([90, 64, 7])
    expected = kernels.sparse_attention(q, torch.cat((own, values)), index, counts, torch.zeros(HEADS), 0.2)
    for plane in planes:
        stack = RowStack(own=own, plane=plane.rows)
        assert torch.equal(kernels.sparse_attention(q, stack, index, counts, torch.zeros(HEADS), 0.2), expected)


def test_rows_that_say_nothing_of_their_layout_are_read_by_whoever_knows_it(kernels: Kernels) -> None:
    values = normal(NUM_ROWS, 64)
    hidden = StoredRows(read=values.__getitem__)
    q, own, index = normal(2, HEADS, 64, seed=1), normal(OWN, 64, seed=2), torch.arange(0, 110, 2).repeat(2, 1)
    counts, sink = torch.tensor([55, 30]), torch.zeros(HEADS)
    got = kernels.sparse_attention(q, RowStack(own=own, plane=hidden), index, counts, sink, 0.1)
    expected = kernels.sparse_attention(q, torch.cat((own, values)), index, counts, sink, 0.1)
    assert_close(got, expected.double().numpy(), 2.0**-6 * torch.ones(expected.shape).numpy())
    queries, weights = fake_fp4_32(normal(1, 1, HEADS, 64, seed=3)), torch.ones(1, 1, HEADS)
    keys = PagedRows(rows=hidden, pages=torch.tensor([[0]]), rows_per_page=90, num_rows=90)
    scores = kernels.index_scores(queries, keys, weights)
    assert_close(
        scores,
        kernels.index_scores(queries, values[None], weights).double().numpy(),
        torch.full((1, 1, 90), 1e-4).numpy(),
    )


def test_unused_entries_may_name_rows_of_a_plane_that_are_nan(kernels: Kernels) -> None:
    plane = RowBuffer(8, 64, RowFormat.BF16)
    plane.write(torch.arange(8), torch.full((8, 64), math.nan))
    stack = RowStack(own=normal(4, 64), plane=plane.rows)
    index = torch.tensor([[0, 3, 11, 5], [1, 2, 0, -1]])
    got = kernels.sparse_attention(
        normal(2, HEADS, 64, seed=1), stack, index, torch.tensor([2, 3]), torch.zeros(HEADS), 1.0
    )
    assert got.isfinite().all()


def test_queries_that_read_a_plane_stand_alone(kernels: Kernels) -> None:
    _, planes = buffers(RowFormat.FP4_16, 512)
    q, own = normal(64, HEADS, 512, seed=1), normal(OWN, 512, seed=2)
    index = torch.randint(0, OWN + NUM_ROWS, (64, 130), generator=torch.Generator().manual_seed(4))
    counts, stack = torch.arange(64) * 130 // 63, RowStack(own=own, plane=planes[1].rows)

    def attend(rows: Tensor) -> Tensor:
        return kernels.sparse_attention(q[rows], stack, index[rows], counts[rows], torch.zeros(HEADS), 512**-0.5)

    assert_rows_stand_alone(attend)


def test_keys_off_the_grid_disturb_no_others(kernels: Kernels) -> None:
    """A key that is no FP4/32 row is multiplied as floats; its neighbours and the queries keep their bits."""
    keys, weights = fake_fp4_32(normal(1, 70, 128, seed=1)), normal(1, 4, HEADS, seed=2, dtype=torch.float32)
    q = fake_fp4_32(normal(1, 4, HEADS, 128, seed=3))
    expected = kernels.index_scores(q, keys, weights)
    odd = keys.clone()
    odd[0, 7], odd[0, 64] = normal(128, seed=4), math.nan
    got = kernels.index_scores(q, odd, weights)
    others = [j for j in range(70) if j not in (7, 64)]
    assert torch.equal(got[..., others], expected[..., others])
    assert torch.equal(got[..., 7], kernels.index_scores(q, odd[:, 7:8], weights)[..., 0])
    assert got[..., 64].isnan().all()
    mixed = q.clone()
    mixed[0, 2] = normal(HEADS, 128, seed=5)
    assert torch.equal(kernels.index_scores(mixed, keys, weights)[0, [0, 1, 3]], expected[0, [0, 1, 3]])


@pytest.mark.parametrize("power", [-110, -60, 0, 60])
def test_dots_on_the_grid_are_sums_of_integers(kernels: Kernels, power: int) -> None:
    """Every code meets every other, at scales from tiny to huge; the reference sums exactly."""
    codes = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0])
    values = torch.stack([codes.roll(shift).repeat(2) for shift in range(16)]).bfloat16()
    keys, q = values * 2.0**power, (values[:HEADS] * 2.0**-power).view(1, 1, HEADS, 32)
    got = kernels.index_scores(q, keys[None], torch.ones(1, 1, HEADS))
    dots = torch.einsum("hd,nd->hn", q[0, 0].double(), keys.double()).relu().sum(0)
    assert torch.equal(got[0, 0], dots.float())


@pytest.mark.parametrize("width", [32, 40, 2080])
def test_keys_of_odd_widths_are_scored(kernels: Kernels, width: int) -> None:
    q, keys = normal(1, 2, HEADS, width, seed=1), normal(1, 67, width, seed=2)
    weights = normal(1, 2, HEADS, seed=3, dtype=torch.float32)
    dots = torch.einsum("rlhd,rnd->rlhn", q.double(), keys.double()).relu()
    expected = torch.einsum("rlh,rlhn->rln", weights.double(), dots).numpy()
    sizes = torch.einsum("rlhd,rnd->rlhn", q.abs().double(), keys.abs().double()).sum(2).numpy()
    assert_close(kernels.index_scores(q, keys, weights), expected, (width / 4 + 16) * 2.0**-24 * sizes * 3)


def test_only_packed_formats_have_scales() -> None:
    for row_format in RowFormat:
        layout = RowBuffer(4, 64, row_format).rows.layout
        assert layout is not None
        assert (layout.scale_row_bytes > 0) == (row_format in PACKED)


@pytest.mark.parametrize("row_format", [RowFormat.BF16, RowFormat.FP4_32, RowFormat.FP8_ROW], ids=lambda one: one.value)
@pytest.mark.parametrize("block_size", [3, 8, 32])
def test_rows_of_wanted_blocks_have_their_scores(kernels: Kernels, row_format: RowFormat, block_size: int) -> None:
    _, planes = buffers(row_format, 64)
    keys = PagedRows(rows=planes[-1].rows, pages=torch.tensor([[0], [0]]), rows_per_page=NUM_ROWS, num_rows=NUM_ROWS)
    q, weights = fake_fp4_32(normal(2, 3, HEADS, 64, seed=1)), normal(2, 3, HEADS, seed=2, dtype=torch.float32)
    blocks = torch.randint(-1, -(-NUM_ROWS // block_size), (2, 3, 2), generator=torch.Generator().manual_seed(5))
    some = replace(keys, blocks=blocks, block_size=block_size)
    wanted = kernels.inside_blocks(blocks.flatten(0, 1), NUM_ROWS, block_size).view(2, 3, NUM_ROWS)
    assert 0 < wanted.sum() < wanted.numel()
    assert torch.equal(kernels.index_scores(q, some, weights)[wanted], kernels.index_scores(q, keys, weights)[wanted])
