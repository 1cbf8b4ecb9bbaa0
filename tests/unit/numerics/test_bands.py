"""Weights in bands are the same weights: codes are where the formula says, and questions have the same answers."""

from collections.abc import Callable

import pytest
import torch

from flash41.numerics.bands import fits_bands, to_bands, to_rows
from flash41.numerics.scaled import Quantized, quantize_fp4_16
from helpers.tensors import dense_weight, in_bands, normal, routed_weight

WEIGHTS = pytest.mark.parametrize("make", [dense_weight, routed_weight], ids=["fp8", "fp4"])


def test_every_code_lies_where_the_formula_says() -> None:
    num_rows, num_channels = 96, 192
    rows = torch.arange(num_rows * num_channels).remainder(251).to(torch.uint8).view(num_rows, num_channels)
    flat = to_bands(rows, 64).flatten()
    for n in range(num_rows):
        for k in range(0, num_channels, 7):
            place = ((n // 32 * (num_channels // 64) + k // 64) * 32 + n % 32) * 64 + k % 64
            assert flat[place] == rows[n, k]


@pytest.mark.parametrize("chunk_bytes", [2, 32, 64])
def test_the_way_back_gives_every_byte(chunk_bytes: int) -> None:
    rows = torch.arange(64 * 192).remainder(249).to(torch.uint8).view(64, 192)
    there = to_bands(rows, chunk_bytes)
    assert not torch.equal(there, rows)
    assert torch.equal(to_rows(there, chunk_bytes), rows)


@WEIGHTS
def test_a_weight_in_bands_has_the_values_of_the_one_in_rows(make: Callable[..., Quantized]) -> None:
    rows = make(96, 192, seed=1)
    bands = in_bands(rows)
    assert bands.in_bands
    assert not torch.equal(bands.codes, rows.codes)
    assert bands.shape == rows.shape
    assert bands.num_bytes == rows.num_bytes
    assert torch.equal(bands.values(), rows.values())
    assert torch.equal(bands.scale_values(), rows.scale_values())
    assert torch.equal(bands.dequantize(), rows.dequantize())
    assert torch.equal(bands.in_rows().codes, rows.codes)
    assert rows.in_rows() is rows


@WEIGHTS
def test_it_is_moved_in_its_own_memory_and_once(make: Callable[..., Quantized]) -> None:
    weight = make(64, 128, seed=2)
    before = weight.codes.clone()
    bands = weight.put_in_bands()
    assert bands.codes.data_ptr() == weight.codes.data_ptr()
    assert not torch.equal(weight.codes, before)
    assert bands.put_in_bands() is bands


@WEIGHTS
def test_cuts_between_bands_are_views_and_others_copies(make: Callable[..., Quantized]) -> None:
    rows = make(128, 192, seed=3)
    bands = in_bands(rows)
    between = bands.slice_rows(32, 96)
    assert between.in_bands
    assert between.codes.data_ptr() == bands.codes.data_ptr() + 32 * bands.codes.stride(0)
    assert torch.equal(between.dequantize(), rows.slice_rows(32, 96).dequantize())
    if rows.group[0] == 1:
        assert torch.equal(bands.slice_rows(5, 70).dequantize(), rows.slice_rows(5, 70).dequantize())
        picked = torch.tensor([3, 99, 4])
        assert torch.equal(bands.rows(picked).dequantize(), rows.rows(picked).dequantize())


def test_what_is_no_whole_number_of_bands_stays_as_it_is() -> None:
    assert fits_bands(32, 64)
    assert not any(fits_bands(*shape) for shape in ((0, 64), (33, 64), (32, 96), (64, 0)))
    cut = dense_weight(64, 256, seed=4)
    strided = Quantized(
        codes=cut.codes[:, :128], scales=cut.scales[:, :4], element=cut.element, scale=cut.scale, group=cut.group
    )
    for weight in (dense_weight(45, 128), routed_weight(64, 96), strided, quantize_fp4_16(normal(32, 64))):
        before = weight.codes.clone()
        assert weight.put_in_bands() is weight
        assert torch.equal(weight.codes, before)
