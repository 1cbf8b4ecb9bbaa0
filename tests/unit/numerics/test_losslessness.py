"""What survives storage unchanged, and the documented exceptions (number-formats.md sections 10 to 12)."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from flash41.numerics.formats import decode_e2m1
from flash41.numerics.rounding import encode_e4m3
from flash41.numerics.scaled import (
    ElementFormat,
    Quantized,
    ScaleFormat,
    fake_fp4_16,
    fake_fp4_32,
    fake_fp8_32,
    quantize_fp4_16,
    quantize_fp4_32,
    quantize_fp8_32,
    quantize_fp8_row,
)

VECTORS = json.loads((Path(__file__).parents[2] / "data/numerics/number_formats.json").read_text())
FAKES = [(fake_fp8_32, quantize_fp8_32), (fake_fp4_32, quantize_fp4_32), (fake_fp4_16, quantize_fp4_16)]
Quantizer = Callable[[torch.Tensor], Quantized]


def normal(*shape: int, sigma: float) -> torch.Tensor:
    return (torch.randn(shape, generator=torch.Generator().manual_seed(0)) * sigma).bfloat16()


@pytest.mark.parametrize(("fake", "quantize"), FAKES)
@pytest.mark.parametrize("sigma", [1e-38, 1e-6, 0.01, 1.0, 1e4])
def test_a_round_trip_is_exact_in_bf16(fake: Callable, quantize: Quantizer, sigma: float) -> None:
    x = normal(16, 512, sigma=sigma)
    assert fake(x).dtype is torch.bfloat16
    assert fake(x.float()).dtype is torch.float32
    assert torch.equal(fake(x).double(), quantize(x).dequantize(torch.float64))


@pytest.mark.parametrize("fake", [fake_fp8_32, fake_fp4_32])
@pytest.mark.parametrize("sigma", [1e-38, 1e-5, 0.01, 1.0, 1e4])
def test_a_second_round_trip_with_power_of_two_scales_changes_nothing(fake: Callable, sigma: float) -> None:
    once = fake(normal(64, 512, sigma=sigma))
    assert torch.equal(fake(once), once)


def test_a_second_round_trip_with_e4m3_scales_changes_only_groups_with_subnormal_scales() -> None:
    changed_rows = {}
    for sigma in (0.01, 0.02, 0.05, 1.0):
        x = normal(256, 512, sigma=sigma)
        once = fake_fp4_16(x)
        changed = (fake_fp4_16(once) != once).view(256, 32, 16).any(-1)
        assert not changed[quantize_fp4_16(x).scales >= 8].any()
        changed_rows[sigma] = changed.any(-1).float().mean().item()
    assert changed_rows[0.01] > 0.98
    assert changed_rows[0.05] == changed_rows[1.0] == 0


def test_the_documented_exception_by_hand() -> None:
    x = torch.zeros(16)
    x[0] = 9 * 2.0**-9  # a/6 = 1.5 * 2^-9, a tie, rounds to 2 * 2^-9; 4.5 -> code of 4 -> 8 * 2^-9
    once = fake_fp4_16(x)
    twice = fake_fp4_16(once)
    assert once[0] == 8 * 2.0**-9
    assert twice[0] == 6 * 2.0**-9  # a/6 = 1.33 * 2^-9 rounds to 1 * 2^-9, and 8 saturates


@pytest.mark.parametrize(("spread", "exact"), [(0, True), (14, True), (15, False)])
def test_an_fp4_index_key_fits_an_fp8_row_while_its_groups_spread_over_14_binades(spread: int, exact: bool) -> None:
    every_code = decode_e2m1(torch.arange(16, dtype=torch.uint8)).repeat(2)
    key = torch.cat([every_code * 2.0**-e for e in (0, spread // 2, 1, spread)])
    assert torch.equal(fake_fp4_32(key), key)
    assert torch.equal(quantize_fp8_row(key).dequantize(), key) is exact


@pytest.mark.parametrize("spread", [14, 15])
def test_an_fp4_tile_fits_fp8_while_its_row_scales_spread_over_14_binades(spread: int) -> None:
    tile = VECTORS["fp4_to_fp8_tile"]
    every_code = decode_e2m1(torch.arange(16, dtype=torch.uint8))
    # Row scales 2^0 .. 2^-spread over a common scale of 2^-6.
    rows = every_code * torch.tensor([[2.0 ** (6 - e)] for e in range(spread + 1)])
    codes = encode_e4m3(rows)
    stored = Quantized(
        codes=codes,
        scales=torch.full((spread + 1, 1), 121, dtype=torch.uint8),
        element=ElementFormat.E4M3,
        scale=ScaleFormat.E8M0,
        group=(1, 16),
    )
    assert rows.max() == tile["largest_value_after"]
    assert torch.equal(stored.dequantize() * 64, rows) is (spread <= tile["max_exponent_spread_exact"])


def test_an_engram_row_is_a_valid_activation_already() -> None:
    generator = torch.Generator().manual_seed(3)
    codes = torch.randint(0, 256, (20_000, 32), dtype=torch.uint8, generator=generator)
    codes[codes & 0x7F == 0x7F] = 0
    scales = torch.randint(110, 140, (20_000, 1), dtype=torch.uint8, generator=generator)
    stored = Quantized(codes=codes, scales=scales, element=ElementFormat.E4M3, scale=ScaleFormat.E8M0, group=(1, 32))
    row = stored.dequantize(torch.bfloat16)
    assert torch.equal(row.float(), stored.dequantize())
    above_floor = row.abs().amax(-1) >= 1e-4
    assert above_floor.sum() > 19_000
    assert torch.equal(fake_fp8_32(row)[above_floor], row[above_floor])


def test_a_block_below_the_floor_is_not_a_valid_activation() -> None:
    row = torch.full((32,), 0.875 * 2.0**-33, dtype=torch.bfloat16)
    assert fake_fp8_32(row).tolist() == [0.0] * 32
