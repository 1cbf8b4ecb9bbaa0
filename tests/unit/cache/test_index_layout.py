"""Bytes of an index plane: every byte of every row has one place, and the FP8 tile has the specified one."""

import pytest

from flash41.cache.index_layout import IndexArrangement, IndexLayout, index_layout
from flash41.config.run import PoolDtype

FORMATS = list(PoolDtype)


@pytest.mark.parametrize(
    ("dtype", "value_bytes", "scale_bytes", "arrangement"),
    [
        (PoolDtype.FP32, 512, 0, IndexArrangement.PLAIN),
        (PoolDtype.BF16, 256, 0, IndexArrangement.PLAIN),
        (PoolDtype.FP4, 64, 4, IndexArrangement.TWO_PLANES),
        (PoolDtype.FP8, 128, 4, IndexArrangement.TILES),
    ],
)
def test_a_key_of_the_release_has_the_bytes_of_the_table(
    dtype: PoolDtype, value_bytes: int, scale_bytes: int, arrangement: IndexArrangement
) -> None:
    layout = index_layout(dtype, 128, 8)
    assert (layout.value_bytes, layout.scale_bytes, layout.arrangement) == (value_bytes, scale_bytes, arrangement)
    assert layout.row_bytes == value_bytes + scale_bytes


def places(layout: IndexLayout, num_rows: int) -> list[int]:
    values = [layout.value_offset(row, byte, num_rows) for row in range(num_rows) for byte in range(layout.value_bytes)]
    scales = [layout.scale_offset(row, byte, num_rows) for row in range(num_rows) for byte in range(layout.scale_bytes)]
    return values + scales


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("tile_rows", [1, 2, 4, 8, 16])
def test_every_byte_of_a_plane_belongs_to_one_row(dtype: PoolDtype, tile_rows: int) -> None:
    layout = index_layout(dtype, 64, tile_rows)
    num_rows = 3 * tile_rows
    assert sorted(places(layout, num_rows)) == list(range(num_rows * layout.row_bytes))


@pytest.mark.parametrize("height", [8, 16])
def test_an_fp8_tile_interleaves_as_many_channels_as_rows(height: int) -> None:
    layout = index_layout(PoolDtype.FP8, 128, height)
    for row in range(height):
        for channel in range(128):
            expected = (channel // height) * height**2 + row * height + channel % height
            assert layout.value_offset(row, channel, height) == expected
            assert layout.value_offset(height + row, channel, 2 * height) == layout.tile_bytes + expected
        assert layout.scale_offset(row, 0, height) == 128 * height + 4 * row
    assert layout.tile_bytes == height * 132


def test_a_tile_has_the_size_of_interleaved_rows_and_not_their_places() -> None:
    # Pitfall 6: a reader of 132-byte rows sees the same size and other bytes.
    layout = index_layout(PoolDtype.FP8, 128, 8)
    assert layout.tile_bytes == 1056
    assert [layout.value_offset(row, 0, 8) for row in range(3)] == [0, 8, 16]


def test_fp4_scales_lie_behind_all_values_of_the_plane() -> None:
    layout = index_layout(PoolDtype.FP4, 128, 8)
    assert layout.value_offset(5, 3, 100) == 5 * 64 + 3
    assert layout.scale_offset(5, 3, 100) == 100 * 64 + 5 * 4 + 3


def test_a_place_outside_the_plane_is_refused() -> None:
    layout = index_layout(PoolDtype.FP8, 128, 8)
    for row, byte in ((-1, 0), (8, 0), (0, -1), (0, 128)):
        with pytest.raises(AssertionError, match="of"):
            layout.value_offset(row, byte, 8)
    for row, byte in ((8, 0), (0, 4)):
        with pytest.raises(AssertionError, match="of"):
            layout.scale_offset(row, byte, 8)
