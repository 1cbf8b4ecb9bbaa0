"""Levels that multiply in BF16: which rows and weights do, what the others lose (nothing), and refused tiles."""

import math
import subprocess

import numpy as np
import pytest
import torch
from torch import Tensor

from flash41.errors import KernelError
from flash41.kernels.cpu.backend import CpuKernels
from flash41.kernels.cpu.level import Level
from flash41.kernels.cpu.library import Library
from flash41.numerics.scaled import Quantized
from helpers.backends import kernels_or_skip
from helpers.command_line import environment
from helpers.emulated import EMULATED, emulated_library
from helpers.tensors import (
    assert_close,
    dense,
    dense_weight,
    in_bands,
    normal,
    random_bytes,
    routed,
    routed_weight,
    signed_codes,
)
from helpers.zygote import forked_python
from oracles import products as oracle

HEIGHT, WIDTH = 96, 672
"""Three bands of 32 rows; 21 groups of channels, so that the last one stands alone in its chunk."""
FP8, FP4 = dense_weight(HEIGHT, WIDTH, seed=1), routed_weight(HEIGHT, WIDTH, seed=2)
WEIGHTS = pytest.mark.parametrize("weight", [FP8, FP4], ids=["fp8", "fp4"])
TINY = 2.0**-130
"""A subnormal number of BF16, which its instructions take for zero."""


def compiled(level: Level) -> CpuKernels:
    found = kernels_or_skip(f"cpu:{level.value}")
    assert isinstance(found, CpuKernels)
    return found


@pytest.fixture(params=[Level.AVX512BF16, Level.AMX])
def kernels(request: pytest.FixtureRequest) -> CpuKernels:
    return compiled(request.param)


@pytest.fixture
def floats() -> CpuKernels:
    """The level that differs in nothing but multiplying in FP32."""
    return compiled(Level.AVX512)


def assert_within_roundings(got: Tensor, x: Tensor, weight: Quantized) -> None:
    a, w = oracle.numbers(x), oracle.weight(weight)
    assert_close(got, a @ w.T, 2 * WIDTH * 2.0**-24 * (np.abs(a) @ np.abs(w).T))


@WEIGHTS
def test_quantised_rows_are_multiplied_in_bf16(kernels: CpuKernels, floats: CpuKernels, weight: Quantized) -> None:
    # Of widely different sizes, so that additions round and another order of them shows.
    x = normal(40, WIDTH, seed=3, dtype=torch.float32) * 2 ** normal(40, WIDTH, seed=4, sigma=6, dtype=torch.float32)
    got, others = kernels.scaled_linear(x, weight), floats.scaled_linear(x, weight)
    assert (got != others).any(dim=1).sum() > 20
    assert_within_roundings(got, torch.from_numpy(oracle.fp8_32(oracle.numbers(x))), weight)


@WEIGHTS
def test_rows_that_bf16_does_not_hold_stay_in_fp32(kernels: CpuKernels, floats: CpuKernels, weight: Quantized) -> None:
    x = normal(40, WIDTH, seed=4, dtype=torch.float32)
    assert torch.equal(kernels.dequantized_linear(x, weight), floats.dequantized_linear(x, weight))


@WEIGHTS
@pytest.mark.parametrize("place", [0, 70, WIDTH - 1])
@pytest.mark.parametrize("value", [1 + 2.0**-9, TINY, 2.0**-71, 2.0**71, math.inf])
def test_one_number_keeps_its_row_in_fp32_and_no_other(
    kernels: CpuKernels, floats: CpuKernels, weight: Quantized, place: int, value: float
) -> None:
    x = normal(20, WIDTH, seed=5).float()
    clean = kernels.dequantized_linear(x, weight)
    x[[1, 17], place] = value
    got, in_floats = kernels.dequantized_linear(x, weight), floats.dequantized_linear(x, weight)
    assert torch.equal(got[[1, 17]].nan_to_num(), in_floats[[1, 17]].nan_to_num())
    rest = [row for row in range(20) if row not in {1, 17}]
    assert torch.equal(got[rest], clean[rest])
    for row in (0, 1):
        assert torch.equal(kernels.dequantized_linear(x[row : row + 1], weight).nan_to_num(), got[[row]].nan_to_num())


@WEIGHTS
def test_the_smallest_and_largest_numbers_in_bf16_lose_nothing(kernels: CpuKernels, weight: Quantized) -> None:
    for size in (2.0**-70, 2.0**69):
        x = torch.zeros(2, WIDTH)
        x[0, 5], x[1] = size, size * normal(WIDTH, seed=6).sign()
        exact = oracle.numbers(x) @ oracle.weight(weight).T
        error = 2 * WIDTH * 2.0**-24 * (np.abs(oracle.numbers(x)) @ np.abs(oracle.weight(weight)).T)
        assert_close(kernels.dequantized_linear(x, weight), exact, error)
        assert torch.equal(
            kernels.dequantized_linear(x[:1], weight).double(),
            torch.from_numpy(exact[:1]),  # one product each: a power of two times a code
        )


def test_a_row_of_subnormal_numbers_is_not_lost(kernels: CpuKernels) -> None:
    x = torch.full((2, WIDTH), TINY, dtype=torch.bfloat16)
    weight = dense(torch.full((32, WIDTH), 0x38, dtype=torch.uint8), torch.full((1, 21), 147, dtype=torch.uint8))
    assert kernels.dequantized_linear(x, weight).unique().tolist() == [WIDTH * TINY * 2.0**20]


@pytest.mark.parametrize("byte", [0, 86, 87, 127, 167, 168, 254])
def test_scales_of_every_size_are_exact(kernels: CpuKernels, byte: int) -> None:
    codes, scales = torch.full((64, 96), 0x38, dtype=torch.uint8), torch.full((2, 3), 127, dtype=torch.uint8)
    scales[1, 1] = byte
    x = torch.zeros(3, 96, dtype=torch.float32)
    x[:, 40] = torch.tensor([1.0, -2.0, 0.5])
    expected = torch.ones(3, 64, dtype=torch.float64) * x[:, 40:41]
    expected[:, 32:] *= 2.0 ** (byte - 127)
    got = kernels.dequantized_linear(x, dense(codes, scales))
    assert torch.equal(got.double(), expected.float().double())


def test_a_band_with_an_extreme_scale_is_as_exact_as_its_neighbours(kernels: CpuKernels) -> None:
    scales = random_bytes(117, 124, HEIGHT, WIDTH // 32, seed=7)
    scales[40, 3], scales[41, 20] = 3, 200
    weight = routed(random_bytes(0, 256, HEIGHT, WIDTH // 2, seed=8), scales)
    x = normal(20, WIDTH, seed=9, dtype=torch.float32)
    whole = kernels.scaled_linear(x, weight)
    assert_within_roundings(whole, torch.from_numpy(oracle.fp8_32(oracle.numbers(x))), weight)
    for count in (1, 16, 17):
        assert torch.equal(kernels.scaled_linear(x[:count], weight), whole[:count])


def test_a_band_with_an_extreme_scale_is_found_in_either_layout() -> None:
    kernels = compiled(Level.AMX)
    for place in [(33, 0), (40, 7), (63, 19)]:
        scales = random_bytes(117, 124, HEIGHT, 20, seed=7)
        scales[place] = 3
        weight, x = routed(random_bytes(0, 256, HEIGHT, 320, seed=8), scales), normal(3, 640, seed=9, sigma=2.0**20)
        assert torch.equal(kernels.scaled_linear(x, in_bands(weight)), kernels.scaled_linear(x, weight))


def test_every_code_is_decoded_exactly(kernels: CpuKernels) -> None:
    for weight in (
        dense(signed_codes(256, 256, seed=10), torch.full((8, 8), 127, dtype=torch.uint8)),
        routed(torch.arange(256, dtype=torch.uint8).repeat(256, 1)[:, :128], random_bytes(120, 134, 256, 8, seed=11)),
    ):
        got = kernels.dequantized_linear(torch.eye(256), weight)
        assert torch.equal(got.t(), weight.dequantize())


@pytest.mark.parametrize("count", [1, 15, 16, 17, 31, 32, 33, 48, 511, 512, 513, 545])
def test_blocks_of_rows_change_no_bit(count: int) -> None:
    kernels, x = compiled(Level.AMX), normal(545, 96, seed=12)
    for weight in (dense_weight(45, 96, seed=13), routed_weight(45, 96, seed=14)):
        whole = kernels.scaled_linear(x, weight)
        assert torch.equal(kernels.scaled_linear(x[-count:], weight), whole[-count:])


def test_a_system_that_refuses_tiles_has_no_such_level(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled(Level.AMX)
    assert Level.AMX in EMULATED
    monkeypatch.setenv("FLASH41_TEST_REFUSES_TILES", "1")
    with pytest.raises(KernelError, match="CPU level amx: got 'refused by this system'"):
        Library(emulated_library(Level.AMX), Level.AMX)


REFUSED = """
import os, sys, torch
from pathlib import Path
from flash41.errors import KernelError
from flash41.kernels.cpu.backend import CpuKernels
from flash41.kernels.cpu.level import Level
from flash41.kernels.cpu.library import Library
from flash41.numerics.scaled import ElementFormat, Quantized, ScaleFormat
kernels = CpuKernels(Library(Path(sys.argv[1]), Level.AMX))
codes, scales = torch.full((2048, 1024), 0x38, dtype=torch.uint8), torch.full((64, 32), 127, dtype=torch.uint8)
weight = Quantized(codes=codes, scales=scales, element=ElementFormat.E4M3, scale=ScaleFormat.E8M0, group=(32, 32))
x = torch.randn(2, 1024)
torch.set_num_threads(1)
expected = kernels.scaled_linear(x, weight)
os.environ["FLASH41_TEST_REFUSES_TILES"] = "1"
torch.set_num_threads(6)  # threads that did not exist before the refusal
try:
    for _ in range(50):
        kernels.scaled_linear(x, weight)
except KernelError as error:
    print(error)
torch.set_num_threads(1)
assert torch.equal(kernels.scaled_linear(x, weight), expected)
"""


def test_a_thread_that_is_refused_tiles_fails_its_operation_and_nothing_else() -> None:
    compiled(Level.AMX)
    command = [*forked_python(), "-c", REFUSED, str(emulated_library(Level.AMX))]
    told = subprocess.run(command, capture_output=True, text=True, check=False, env=environment(), timeout=60)
    assert told.returncode == 0, told.stderr
    assert told.stdout.startswith("tiles for a thread of linear: got 'refused by this system', expected granted")
