"""Rows of n-gram tables, looked up and dequantised.  spec: engram.md section 3."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from flash41.engram.tables import EngramTable
from flash41.kernels.interface import Kernels
from helpers.tensors import random_bytes, signed_codes
from oracles.number_formats import E4M3_MAGNITUDES

ROWS = 75
each_dtype = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])


def table_of(width: int) -> tuple[Tensor, Tensor]:
    """Any code but NaN; scales from 2^-27 to 2^19, and the two at both ends."""
    scales = random_bytes(100, 147, ROWS, width // 32, seed=2)
    scales[5, 0], scales[6, -1] = 0, 254
    return signed_codes(ROWS, width, seed=1), scales


def exact(codes: Tensor, scales: Tensor, row_ids: Tensor) -> Tensor:
    """By the equation in FP64, rounded to BF16 through FP32, which holds the products."""
    code, exponent = codes.numpy()[row_ids.numpy()], scales.numpy()[row_ids.numpy()].astype(np.float64) - 127
    magnitudes = np.array([float(value) for value in E4M3_MAGNITUDES] + [math.nan])
    value = np.where(code & 0x80, -1.0, 1.0) * magnitudes[code & 0x7F] * np.repeat(np.exp2(exponent), 32, axis=1)
    return torch.from_numpy(value).float().bfloat16()


def assert_same_bits(got: Tensor, expected: Tensor) -> None:
    bits = torch.int16 if expected.dtype is torch.bfloat16 else torch.int32
    assert got.dtype is expected.dtype
    assert got.shape == expected.shape
    assert torch.equal(got.isnan(), expected.isnan())  # whatever else a NaN's bits say
    assert torch.equal(got.nan_to_num(0.0).view(bits), expected.nan_to_num(0.0).view(bits))


@each_dtype
@pytest.mark.parametrize("width", [32, 64, 96, 160, 256])
def test_a_row_is_its_codes_times_its_scales(kernels: Kernels, width: int, dtype: torch.dtype) -> None:
    codes, scales = table_of(width)
    row_ids = torch.cat([torch.tensor([ROWS - 1, 0, ROWS - 1, 7, 7, 7]), torch.randperm(ROWS)])
    values, has_nan_scale = kernels.engram_rows(codes, scales, row_ids, dtype)
    assert_same_bits(values, exact(codes, scales, row_ids).to(dtype))
    assert has_nan_scale is False


@each_dtype
def test_every_code_meets_every_scale(kernels: Kernels, dtype: torch.dtype) -> None:
    # Row r has scale byte r and all codes: subnormals of BF16, infinities, NaN codes, and the NaN scale.
    codes, scales = torch.arange(256, dtype=torch.uint8).repeat(256, 1), torch.arange(256, dtype=torch.uint8)
    scales = scales.unsqueeze(1).repeat(1, 8)
    values, has_nan_scale = kernels.engram_rows(codes, scales, torch.arange(255), dtype)
    magnitudes = np.array([float(value) for value in E4M3_MAGNITUDES] + [math.nan])
    signed = np.concatenate([magnitudes, -magnitudes])
    products = signed * np.exp2(np.arange(255.0) - 127)[:, None]
    with np.errstate(over="ignore"):
        expected = torch.from_numpy(products.astype(np.float32)).bfloat16().to(dtype)
    assert_same_bits(values, expected)
    assert values.isnan().any(1).all()
    assert values.isinf().any()
    assert has_nan_scale is False


def test_a_nan_scale_makes_its_group_nan_and_is_told(kernels: Kernels) -> None:
    codes, scales = table_of(96)
    codes[4, 32:64] = 0
    scales[4, 1] = 255
    values, has_nan_scale = kernels.engram_rows(codes, scales, torch.tensor([3, 4, 5]), torch.bfloat16)
    assert has_nan_scale is True
    assert values[1, 32:64].isnan().all()
    rest = torch.cat([values[0], values[1, :32], values[1, 64:], values[2]])
    assert rest.isfinite().all()
    assert kernels.engram_rows(codes, scales, torch.tensor([3, 5]), torch.bfloat16)[1] is False


def test_a_nan_scale_is_told_from_any_of_many_rows(kernels: Kernels) -> None:
    codes, scales = table_of(32)
    scales[9, 0] = 255
    row_ids = torch.full((500,), 8)
    for place in (0, 33, 250, 499):
        some = row_ids.clone()
        some[place] = 9
        assert kernels.engram_rows(codes, scales, some, torch.bfloat16)[1] is True, place


@each_dtype
def test_no_rows_are_an_empty_answer(kernels: Kernels, dtype: torch.dtype) -> None:
    values, has_nan_scale = kernels.engram_rows(*table_of(64), torch.empty(0, dtype=torch.int64), dtype)
    assert values.shape == (0, 64)
    assert values.dtype is dtype
    assert has_nan_scale is False


def test_tables_and_row_ids_may_be_cut_out_of_larger_tensors(kernels: Kernels) -> None:
    codes, scales = table_of(96)
    row_ids = torch.randint(0, ROWS, (40,), generator=torch.Generator().manual_seed(3))
    expected = exact(codes, scales, row_ids)
    wide_codes, wide_scales = random_bytes(0, 256, ROWS, 131, seed=4), random_bytes(0, 256, ROWS, 5, seed=5)
    wide_codes[:, 3:99], wide_scales[:, 1:4] = codes, scales
    got, _ = kernels.engram_rows(wide_codes[:, 3:99], wide_scales[:, 1:4], row_ids, torch.bfloat16)
    assert_same_bits(got, expected)
    across = codes.t().contiguous().t(), scales.t().contiguous().t()
    assert_same_bits(kernels.engram_rows(*across, row_ids, torch.bfloat16)[0], expected)
    strided = torch.stack([row_ids, row_ids + ROWS], 1)[:, 0]
    assert_same_bits(kernels.engram_rows(codes, scales, strided, torch.bfloat16)[0], expected)


def test_rows_beyond_two_to_the_31_and_32_bytes_are_read_from_their_place(kernels: Kernels, tmp_path: Path) -> None:
    head_dim, num_rows = 256, 9 * 2**30 // 256
    places = {0: 0x38, 2**31: 0x40, 2**32: 0x48, 2**33: 0x50, (num_rows - 1) * head_dim: 0x58}  # 1, 2, 4, 8, 16
    weight_file, scale_file = tmp_path / "weight", tmp_path / "scale"
    with weight_file.open("wb") as file:
        file.truncate(num_rows * head_dim)
        for byte, code in places.items():
            file.seek(byte)
            file.write(bytes([code]) * head_dim)
    with scale_file.open("wb") as file:
        file.truncate(num_rows * 8)
        for byte in places:
            file.seek(byte // head_dim * 8)
            file.write(bytes([127]) * 8)
    if weight_file.stat().st_blocks * 512 > 2**24:
        pytest.skip("this file system keeps no holes")
    table = EngramTable(
        torch.from_numpy(np.memmap(weight_file, np.uint8, "r+", shape=(num_rows, head_dim))),
        torch.from_numpy(np.memmap(scale_file, np.uint8, "r+", shape=(num_rows, 8))),
        kernels.engram_rows,
    )
    wanted = np.array([[byte // head_dim] for byte in places])
    assert table.gather(wanted).float().tolist() == [[value] * head_dim for value in (1.0, 2.0, 4.0, 8.0, 16.0)]
    assert table.num_rows == num_rows
