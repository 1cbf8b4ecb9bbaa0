"""Row buffers: every format stores what the model rounded, and reads it back bit for bit."""

from collections.abc import Callable

import pytest
import torch

from flash41.cache.rows import RowBuffer, RowFormats, row_formats, zeroed
from flash41.config.run import PoolDtype, PoolFormat, Profile
from flash41.errors import CapacityError
from flash41.numerics.scaled import Quantized, quantize_fp4_16, quantize_fp4_32, quantize_fp8_32, quantize_fp8_row
from flash41.numerics.stored_rows import PACKED, RowFormat
from helpers.tensors import normal

QUANTIZERS: dict[RowFormat, Callable[[torch.Tensor], Quantized]] = {
    RowFormat.FP4_16: quantize_fp4_16,
    RowFormat.FP8_32: quantize_fp8_32,
    RowFormat.FP4_32: quantize_fp4_32,
    RowFormat.FP8_ROW: quantize_fp8_row,
}
SIGMAS = [0.01, 1.0, 300.0]


def bits(x: torch.Tensor) -> torch.Tensor:
    return x.view(torch.int16 if x.dtype is torch.bfloat16 else torch.int32)


@pytest.mark.parametrize(
    ("row_format", "channels", "row_bytes"),
    [
        (RowFormat.BF16, 512, 1024),
        (RowFormat.FP4_16, 512, 288),
        (RowFormat.FP8_32, 512, 528),
        (RowFormat.FP4_32, 128, 68),
        (RowFormat.FP8_ROW, 128, 132),
        (RowFormat.BF16, 128, 256),
        (RowFormat.FP32, 512, 2048),
    ],
)
def test_a_row_has_the_bytes_of_the_table(row_format: RowFormat, channels: int, row_bytes: int) -> None:
    buffer = RowBuffer(10, channels, row_format)
    assert buffer.num_rows == 10
    assert buffer.num_bytes == 10 * row_bytes


@pytest.mark.parametrize("row_format", list(QUANTIZERS))
@pytest.mark.parametrize("sigma", SIGMAS)
def test_a_packed_row_and_a_bf16_row_read_the_same_bits(row_format: RowFormat, sigma: float) -> None:
    rows = QUANTIZERS[row_format](normal(64, 128, seed=1, sigma=sigma))
    packed, plain = RowBuffer(64, 128, row_format), RowBuffer(64, 128, RowFormat.BF16)
    addresses = torch.randperm(64, generator=torch.Generator().manual_seed(0))
    for buffer in (packed, plain):
        buffer.write(addresses, rows)
    assert packed.read(addresses).dtype is torch.bfloat16
    assert torch.equal(bits(packed.read(addresses)), bits(plain.read(addresses)))
    # Rounding to BF16 loses nothing of the exact product of code and scale.
    assert torch.equal(packed.read(addresses).double(), rows.dequantize(torch.float64))


def test_codes_come_from_the_rounded_record_not_from_its_values() -> None:
    # Scales in the subnormal range of E4M3 do not survive a second quantisation, so a re-quantising buffer would show.
    rows = quantize_fp4_16(normal(2000, 64, seed=2, sigma=0.01))
    again = quantize_fp4_16(rows.dequantize(torch.bfloat16))
    assert not torch.equal(again.dequantize(), rows.dequantize())
    buffer = RowBuffer(2000, 64, RowFormat.FP4_16)
    buffer.write(torch.arange(2000), rows)
    assert torch.equal(buffer.read(torch.arange(2000)).float(), rows.dequantize())


@pytest.mark.parametrize("row_format", list(RowFormat))
def test_a_row_of_zeros_reads_zeros(row_format: RowFormat) -> None:
    zeros = torch.zeros(2, 64, dtype=torch.bfloat16)
    buffer = RowBuffer(3, 64, row_format)
    buffer.write(torch.tensor([0, 2]), QUANTIZERS[row_format](zeros) if row_format in QUANTIZERS else zeros)
    assert not buffer.read(torch.arange(3)).any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_plain_values_pass_unchanged_through_a_buffer_of_their_dtype(dtype: torch.dtype) -> None:
    values = normal(5, 48, seed=3, dtype=dtype)
    buffer = RowBuffer(9, 48, RowFormat.FP32 if dtype is torch.float32 else RowFormat.BF16)
    addresses = torch.tensor([8, 0, 3, 4, 6])
    buffer.write(addresses, values)
    assert buffer.read(addresses).dtype is dtype
    assert torch.equal(buffer.read(addresses), values)


def test_an_fp32_buffer_keeps_the_exact_value_of_a_rounded_row() -> None:
    rows = quantize_fp4_16(normal(5, 64, seed=4))
    buffer = RowBuffer(5, 64, RowFormat.FP32)
    buffer.write(torch.arange(5), rows)
    assert torch.equal(buffer.read(torch.arange(5)), rows.dequantize())


@pytest.mark.parametrize("row_format", list(RowFormat))
def test_addresses_of_any_shape_are_read_in_order_and_repeatedly(row_format: RowFormat) -> None:
    values = normal(6, 64, seed=5)
    buffer = RowBuffer(6, 64, row_format)
    buffer.write(torch.arange(6), QUANTIZERS[row_format](values) if row_format in QUANTIZERS else values)
    flat = buffer.read(torch.arange(6))
    addresses = torch.tensor([[5, 0, 0], [2, 5, 1]])
    assert torch.equal(buffer.read(addresses), flat[addresses])
    assert buffer.read(torch.zeros(3, 0, dtype=torch.int64)).shape == (3, 0, 64)


@pytest.mark.parametrize("row_format", list(RowFormat))
def test_a_write_touches_only_its_addresses(row_format: RowFormat) -> None:
    def rounded(seed: int, num_rows: int) -> torch.Tensor | Quantized:
        values = normal(num_rows, 64, seed=seed)
        return QUANTIZERS[row_format](values) if row_format in QUANTIZERS else values

    buffer = RowBuffer(8, 64, row_format)
    buffer.write(torch.arange(8), rounded(6, 8))
    before = buffer.read(torch.arange(8))
    buffer.write(torch.tensor([5, 1]), rounded(7, 2))
    after = buffer.read(torch.arange(8))
    untouched = torch.tensor([0, 2, 3, 4, 6, 7])
    assert torch.equal(after[untouched], before[untouched])
    assert not torch.equal(after[[1, 5]], before[[1, 5]])


@pytest.mark.parametrize("row_format", list(PACKED))
def test_a_packed_buffer_refuses_values_it_would_have_to_round(row_format: RowFormat) -> None:
    buffer = RowBuffer(2, 64, row_format)
    with pytest.raises(AssertionError, match="handed plain values"):
        buffer.write(torch.arange(2), normal(2, 64))
    for other in set(PACKED) - {row_format}:
        with pytest.raises(AssertionError):
            buffer.write(torch.arange(2), QUANTIZERS[other](normal(2, 64)))


@pytest.mark.parametrize(
    ("main", "index", "expected"),
    [
        (PoolDtype.BF16, PoolDtype.FP4, (RowFormat.BF16, RowFormat.BF16, RowFormat.FP4_32)),
        (PoolDtype.FP4, PoolDtype.BF16, (RowFormat.FP8_32, RowFormat.FP4_16, RowFormat.BF16)),
        (PoolDtype.FP4, PoolDtype.FP8, (RowFormat.FP8_32, RowFormat.FP4_16, RowFormat.FP8_ROW)),
        (PoolDtype.FP32, PoolDtype.FP32, (RowFormat.FP32, RowFormat.FP32, RowFormat.FP32)),
    ],
)
def test_a_pool_names_the_format_of_each_kind_of_row(
    main: PoolDtype, index: PoolDtype, expected: tuple[RowFormat, RowFormat, RowFormat]
) -> None:
    window, main_rows, index_rows = expected
    formats = RowFormats(window=window, main=main_rows, index=index_rows)
    assert row_formats(PoolFormat(main=main, index=index)) == formats


@pytest.mark.parametrize("profile", list(Profile))
def test_every_pool_a_profile_allows_has_row_formats(profile: Profile) -> None:
    for pool in profile.allowed_pools:
        formats = row_formats(pool)
        plain = {RowFormat.FP32} if profile is Profile.FP32 else set(RowFormat) - {RowFormat.FP32}
        assert {formats.window, formats.main, formats.index} <= plain


@pytest.mark.parametrize("num_rows", [2**46, 2**60], ids=["more than any machine has", "more than an address holds"])
def test_memory_that_the_system_refuses_is_counted(num_rows: int) -> None:
    with pytest.raises(CapacityError, match=rf"cache memory in bytes: got {num_rows * 64}, expected what the system"):
        zeroed((num_rows, 32), torch.bfloat16)
