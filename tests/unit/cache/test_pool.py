"""Every buffer of a pool against the byte addresses of its placement."""

import json
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from flash41.cache.geometry import PoolGeometry, pool_geometry
from flash41.cache.placement import Placement, placement
from flash41.cache.pool import Pool, TiledRows
from flash41.cache.rows import RowFormats, row_formats
from flash41.cache.store import Buffer
from flash41.cache.views import Rows
from flash41.config.huggingface import config_from_dict
from flash41.config.run import PoolDtype
from flash41.errors import ConfigError
from flash41.numerics.stored_rows import RowFormat
from helpers.cache_geometry import PAIRS, pool, release, tiny
from helpers.config_documents import patched, tiny_text
from helpers.pool_rows import random_rows, row_codes, row_scales, row_values

NUM_PAGES, NUM_SLOTS = 3, 2
ALL_TILED = [(main, PoolDtype.FP8) for main in (PoolDtype.BF16, PoolDtype.FP4, PoolDtype.FP32)]


def with_tiles(height: int, main: PoolDtype, index: PoolDtype, block_size: int, head_dim: int = 64) -> PoolGeometry:
    """The small checkpoint's pool with another tile height and another width."""
    sizes = {"candidate_block_size": height, "candidate_topk_blocks": 40, "head_dim": head_dim}
    document = patched({f"text_config.{key}": value for key, value in sizes.items()}, json.loads(tiny_text()))
    return pool_geometry(config_from_dict(document), pool(main, index), block_size=block_size)


def geometries() -> Iterator[tuple[str, PoolGeometry]]:
    for main, index in PAIRS:
        name = f"{main.value}+{index.value}"
        yield f"{name}, page of 4", tiny(main, index, block_size=4)
        yield f"{name}, page of 12", tiny(main, index, block_size=12)
        yield f"{name}, drafts", tiny(main, index, block_size=8, draft_tokens=5)
        if index is PoolDtype.FP8:
            for height in (1, 4, 8, 16):
                yield f"{name}, tiles of {height}", with_tiles(height, main, index, 2 * height * 3, head_dim=96)
        else:
            yield f"{name}, blocks of 3", with_tiles(3, main, index, 6, head_dim=96)
    yield "release", release(block_size=16)
    yield "release packed", release("fp4", "fp4", block_size=16)


GEOMETRIES = dict(geometries())


@pytest.fixture(params=GEOMETRIES)
def places(request: pytest.FixtureRequest) -> Placement:
    return placement(GEOMETRIES[request.param], NUM_PAGES, NUM_SLOTS)


def formats(places: Placement) -> RowFormats:
    return row_formats(places.geometry.pool)


def bytes_at(tested: Pool, addresses: list[int]) -> list[int]:
    return tested.memory[torch.tensor(addresses, dtype=torch.int64)].tolist()  # type: ignore[no-any-return]


def written(buffer: Buffer, address: int, row_format: RowFormat, channels: int, seed: int) -> tuple[list[int], Rows]:
    """Bytes, values first, of a random row that was written to a flat row number."""
    rows = random_rows(row_format, 1, channels, seed)
    buffer.write(torch.tensor([address]), rows)
    return [*row_codes(rows)[0].tolist(), *row_scales(rows)[0].tolist()], rows


def test_the_pool_is_one_allocation_of_the_planned_bytes(places: Placement) -> None:
    tested = Pool(places)
    assert tested.memory.nbytes == places.total_bytes
    assert tested.memory.untyped_storage().nbytes() == places.total_bytes
    assert not tested.memory.any()


def test_a_main_row_lies_at_its_address(places: Placement) -> None:
    tested, geometry = Pool(places), places.geometry
    for owner in geometry.owners:
        for page_id, row in ((0, 0), (1, owner.rows_per_page - 1), (NUM_PAGES - 1, owner.rows_per_page // 2)):
            number = page_id * owner.rows_per_page + row
            expected, _ = written(
                tested.main[owner.layer_id], number, formats(places).main, geometry.channels, owner.layer_id + row
            )
            start = places.main_address(owner.layer_id, page_id, row)
            assert tested.memory[start : start + geometry.main_row_bytes].tolist() == expected, (owner, page_id, row)


def test_every_byte_of_an_index_key_lies_at_its_address(places: Placement) -> None:
    tested, layout = Pool(places), places.geometry.index
    for owner in places.geometry.owners:
        for page_id, row in ((0, 0), (1, owner.rows_per_page - 1), (NUM_PAGES - 1, owner.rows_per_page // 2)):
            number, layer_id = page_id * owner.rows_per_page + row, owner.layer_id
            expected, _ = written(tested.index[layer_id], number, formats(places).index, layout.channels, number)
            values = [places.index_value_address(layer_id, page_id, row, b) for b in range(layout.value_bytes)]
            scales = [places.index_scale_address(layer_id, page_id, row, b) for b in range(layout.scale_bytes)]
            assert bytes_at(tested, values + scales) == expected, (owner, page_id, row)


def test_a_window_row_lies_at_its_address(places: Placement) -> None:
    tested, geometry = Pool(places), places.geometry
    ring = geometry.window_ring
    for slot, layer_id, position in ((0, 0, 0), (1, geometry.num_layers - 1, ring - 1), (1, 1, ring + 1)):
        number = slot * ring + position % ring
        expected, _ = written(tested.windows[layer_id], number, formats(places).window, geometry.channels, position)
        start = places.window_address(slot, layer_id, position)
        assert tested.memory[start : start + geometry.window_row_bytes].tolist() == expected


def test_members_of_open_groups_lie_in_their_fields(places: Placement) -> None:
    tested, geometry = Pool(places), places.geometry
    assert set(tested.members) == {owner.layer_id for owner in geometry.owners if owner.ratio > 1}
    for number, owner in enumerate(geometry.owners):
        if owner.ratio == 1:
            continue
        for field, plane in zip(("compress_kv", "compress_score"), tested.members[owner.layer_id], strict=True):
            assert plane.dtype is torch.float32
            assert plane.shape == (NUM_SLOTS, geometry.compressor_ring, geometry.channels)
            row = random_rows(RowFormat.FP32, 1, geometry.channels, number)
            assert isinstance(row, Tensor)
            last = geometry.compressor_ring - 1
            plane[1, last] = row[0]
            start = places.field_address(1, field)
            start += 4 * geometry.channels * (number * geometry.compressor_ring + last)
            assert tested.memory[start : start + 4 * geometry.channels].tolist() == row_codes(row)[0].tolist()


def all_buffers(tested: Pool) -> Iterator[tuple[Buffer, int, RowFormat, int]]:
    """(buffer, rows, format, channels) of everything a pool holds but members."""
    geometry, kinds = tested.placement.geometry, formats(tested.placement)
    for buffer in tested.windows:
        yield buffer, NUM_SLOTS * geometry.window_ring, kinds.window, geometry.channels
    for owner in geometry.owners:
        num_rows = NUM_PAGES * owner.rows_per_page
        yield tested.main[owner.layer_id], num_rows, kinds.main, geometry.channels
        yield tested.index[owner.layer_id], num_rows, kinds.index, geometry.index.channels


def test_rows_written_everywhere_are_all_read_back(places: Placement) -> None:
    """No row overlaps another one, members included; stale bytes of an earlier life do not matter."""
    tested = Pool(places)
    tested.memory.fill_(0xFF)
    expected = []
    for seed, (buffer, num_rows, row_format, channels) in enumerate(all_buffers(tested)):
        rows = random_rows(row_format, num_rows, channels, seed)
        order = torch.randperm(num_rows, generator=torch.Generator().manual_seed(seed))
        buffer.write(order, rows)
        expected.append((buffer, order, row_values(rows)))
    planes = [plane for pair in tested.members.values() for plane in pair]
    for seed, plane in enumerate(planes):
        plane.copy_(torch.full_like(plane, float(seed)) + torch.arange(plane.shape[-1]))
    for buffer, order, values in expected:
        got = buffer.read(order)
        assert got.dtype is values.dtype
        assert torch.equal(got, values)
    for seed, plane in enumerate(planes):
        assert torch.equal(plane, torch.full_like(plane, float(seed)) + torch.arange(plane.shape[-1]))


def test_rows_are_read_in_any_shape_of_addresses() -> None:
    for geometry in (tiny(PoolDtype.BF16, PoolDtype.FP8), tiny(PoolDtype.FP4, PoolDtype.FP4)):
        tested = Pool(placement(geometry, NUM_PAGES, NUM_SLOTS))
        for buffer, num_rows, row_format, channels in all_buffers(tested):
            rows = random_rows(row_format, num_rows, channels)
            buffer.write(torch.arange(num_rows), rows)
            addresses = torch.tensor([[1, 0, num_rows - 1], [2, 2, 1]])
            assert torch.equal(buffer.read(addresses), row_values(rows)[addresses])
            assert buffer.read(addresses[:, :0]).shape == (2, 0, channels)


def token_interleaved(tested: Pool, owner: int, num_rows: int, channels: int) -> tuple[Tensor, Tensor]:
    """Codes and scales as a reader sees them that takes a plane for rows of `channels` values and a scale."""
    start = tested.placement.index_start(owner)
    plane = tested.memory[start : start + num_rows * (channels + 4)].view(num_rows, channels + 4)
    return plane[:, :channels], plane[:, channels:].contiguous().view(torch.float32)


@pytest.mark.parametrize(("height", "agrees"), [(1, True), (2, False), (4, False), (8, False), (16, False)])
@pytest.mark.parametrize(("main", "index"), ALL_TILED)
def test_a_reader_of_rows_sees_other_numbers_in_a_plane_of_tiles(
    main: PoolDtype, index: PoolDtype, height: int, agrees: bool
) -> None:
    """The negative control of the tile layout: both readings have the same bytes, and only tiles of one row agree."""
    geometry = with_tiles(height, main, index, 4 * height)
    tested = Pool(placement(geometry, NUM_PAGES, NUM_SLOTS))
    for owner in geometry.owners:
        num_rows, channels = NUM_PAGES * owner.rows_per_page, geometry.index.channels
        buffer = tested.index[owner.layer_id]
        assert isinstance(buffer, TiledRows)
        rows = random_rows(RowFormat.FP8_ROW, num_rows, channels)
        buffer.write(torch.arange(num_rows), rows)
        assert torch.equal(buffer.read(torch.arange(num_rows)), row_values(rows))
        codes, scales = token_interleaved(tested, owner.layer_id, num_rows, channels)
        assert torch.equal(codes, row_codes(rows)) is agrees
        assert torch.equal(scales.view(torch.uint8), row_scales(rows)) is agrees


def test_a_tile_that_does_not_divide_the_channels_has_no_layout() -> None:
    with pytest.raises(ConfigError, match="multiple of the tile's 3 rows"):
        with_tiles(3, PoolDtype.BF16, PoolDtype.FP8, 6)
