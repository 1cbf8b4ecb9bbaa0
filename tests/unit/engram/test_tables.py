import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from flash41.engram.tables import EngramTable
from flash41.errors import CheckpointError, ProtocolError
from flash41.kernels.reference.engram_rows import engram_rows
from oracles.number_formats import E4M3_MAGNITUDES

ROWS, HEAD_DIM = 40, 64


def random_bytes(seed: int) -> tuple[Tensor, Tensor]:
    """Any code but the two NaNs; scales from 2^-27 to 2^19."""
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(0, 0x7F, (ROWS, HEAD_DIM), generator=generator)
    signs = torch.randint(0, 2, (ROWS, HEAD_DIM), generator=generator) * 0x80
    scales = torch.randint(100, 147, (ROWS, HEAD_DIM // 32), generator=generator)
    return (codes + signs).to(torch.uint8), scales.to(torch.uint8)


WEIGHT, SCALE = random_bytes(0)
TABLE = EngramTable(WEIGHT, SCALE, engram_rows)


def value(row: int, channel: int) -> float:
    """One element, by the equation."""
    code = int(WEIGHT[row, channel])
    magnitude = float(E4M3_MAGNITUDES[code & 0x7F]) * 2.0 ** (int(SCALE[row, channel // 32]) - 127)
    return math.copysign(magnitude, -1.0 if code & 0x80 else 1.0)


def rows(*values: Any) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def test_gathered_lanes_are_column_times_head_dim_plus_channel() -> None:
    wanted = rows([3, 17, 39], [0, 3, 21])
    gathered = TABLE.gather(wanted)
    assert gathered.dtype is torch.bfloat16
    assert gathered.shape == (2, 3 * HEAD_DIM)
    expected = [[value(row, channel) for row in token for channel in range(HEAD_DIM)] for token in wanted.tolist()]
    # Four significant bits times a power of two: BF16 holds every value.
    assert gathered.double().tolist() == expected


def test_scale_is_a_power_of_two_per_row_and_32_channels() -> None:
    weight = torch.full((2, 64), 0x38, dtype=torch.uint8)  # 1.0
    scale = torch.tensor([[127, 120], [0, 254]], dtype=torch.uint8)
    gathered = EngramTable(weight, scale, engram_rows).gather(rows([0], [1])).double()
    assert gathered[:, ::32].tolist() == [[1.0, 2.0**-7], [2.0**-127, 2.0**127]]
    assert (gathered[:, :32] == gathered[:, :1]).all()


def test_a_value_below_the_subnormals_of_bf16_is_rounded_to_them() -> None:
    # BF16 ends at 2^-133: 2^-6 * 2^-127 just fits, 3 * 2^-9 * 2^-127 = 3/8 of it does not.
    weight = torch.tensor([[0x08, 0x03] * 16], dtype=torch.uint8)
    gathered = EngramTable(weight, torch.zeros(1, 1, dtype=torch.uint8), engram_rows).gather(rows([0])).double()
    assert gathered[0, :2].tolist() == [2.0**-133, 0.0]


@given(wanted=st.lists(st.lists(st.integers(0, ROWS - 1), min_size=3, max_size=3), max_size=6))
@settings(deadline=None, max_examples=60)
def test_gather_is_indexing_of_the_dequantised_table(wanted: list[list[int]]) -> None:
    index = np.array(wanted, dtype=np.int64).reshape(-1, 3)
    whole = TABLE.gather(np.arange(ROWS, dtype=np.int64)[:, None])
    assert TABLE.gather(index).equal(whole[torch.from_numpy(index)].flatten(1))


def test_the_reader_is_asked_for_the_rows_of_tokens_that_are_not_masked() -> None:
    asked: list[tuple[list[int], torch.dtype]] = []

    def recorded(codes: Tensor, scales: Tensor, row_ids: Tensor, dtype: torch.dtype) -> tuple[Tensor, bool]:
        asked.append((row_ids.tolist(), dtype))
        return engram_rows(codes, scales, row_ids, dtype)

    table = EngramTable(WEIGHT, SCALE, recorded)
    table.gather(rows([7, 7], [9, 9], [2, 30]), np.array([False, True, False]), torch.float32)
    assert asked == [([7, 7, 2, 30], torch.float32)]


@pytest.mark.parametrize("masked", [None, np.array([False, True])])
def test_rows_in_fp32_have_the_values_of_those_in_bf16(masked: Any) -> None:
    wide = TABLE.gather(rows([1, 2], [3, 4]), masked, torch.float32)
    assert wide.dtype is torch.float32
    assert wide.equal(TABLE.gather(rows([1, 2], [3, 4]), masked).float())


def test_masked_tokens_are_zero_and_read_nothing() -> None:
    wanted, masked = rows([1, 2], [ROWS, -1], [3, 1]), np.array([False, True, False])
    gathered = TABLE.gather(wanted, masked)
    assert gathered[[0, 2]].equal(TABLE.gather(wanted[[0, 2]]))
    assert not gathered[1].any()
    assert gathered.dtype is torch.bfloat16


def test_a_fully_masked_gather_is_zero() -> None:
    assert TABLE.gather(rows([1, 2], [3, 4]), np.array([True, True])).equal(
        torch.zeros(2, 2 * HEAD_DIM, dtype=torch.bfloat16)
    )


@pytest.mark.parametrize("wrong", [-1, ROWS, 2**31, 2**32])
def test_a_row_outside_the_table_is_refused(wrong: int) -> None:
    with pytest.raises(ProtocolError, match=rf"Engram rows: got \[{wrong}\], expected rows in 0..39"):
        TABLE.gather(rows([0, wrong], [wrong, 1]))


def test_a_nan_scale_is_refused_when_its_row_is_read() -> None:
    scale = SCALE.clone()
    scale[5, 1] = 255
    table = EngramTable(WEIGHT, scale, engram_rows)
    assert table.gather(rows([4, 6])).isfinite().all()
    with pytest.raises(CheckpointError, match=r"engram.embed.scale: scale byte 255 \(NaN\) at \[\(5, 1\)\]"):
        table.gather(rows([4, 5]))


@pytest.mark.parametrize(
    ("weight", "scale", "message"),
    [
        (WEIGHT, SCALE[:-1], r"shape of the Engram scale for weight \(40, 64\): got \(39, 2\), expected \(40, 2\)"),
        (WEIGHT, SCALE[: ROWS // 32], r"got \(1, 2\)"),
        (WEIGHT[:, :33], SCALE, r"channels of an Engram row: got 33, expected a multiple of 32"),
        (WEIGHT.view(torch.int8), SCALE, r"Engram table weight: got .*int8"),
        (WEIGHT.flatten(), SCALE.float(), r"(?s)2 faults.*Engram table weight.*Engram table scale"),
    ],
)
def test_a_table_whose_parts_disagree_is_refused(weight: Tensor, scale: Tensor, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        EngramTable(weight, scale, engram_rows)
