"""What the compiled products promise beyond the interface: bits that depend on nothing beside a row, and a bound."""

import math
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from torch import Tensor

from flash41.kernels.cpu.backend import CpuKernels
from flash41.kernels.cpu.level import Level
from flash41.kernels.interface import ExpertWeights
from flash41.kernels.reference.backend import ReferenceKernels
from flash41.numerics.scaled import Quantized
from helpers.backends import COMPILED, kernels_or_skip, those_here
from helpers.tensors import (
    assert_close,
    dense,
    dense_weight,
    expert_weights,
    normal,
    random_bytes,
    routed_weight,
    signed_codes,
)
from oracles import products as oracle

WIDTH, HEIGHT = 1376, 77
"""43 groups of channels and rows that no tile divides."""

NUM_ROWS = 200
COUNTS = (1, 2, 3, 4, 5, 6, 16, 17, 64, 97, 200)
"""Both sides of every change of method: registers, decoded tiles, one block and more, more than a panel."""

Operation = Callable[[CpuKernels, Tensor], Tensor]


@pytest.fixture(params=those_here(COMPILED))
def kernels(request: pytest.FixtureRequest) -> CpuKernels:
    found = kernels_or_skip(request.param)
    assert isinstance(found, CpuKernels)
    return found


@pytest.fixture
def restored_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


FP8, FP4 = dense_weight(HEIGHT, WIDTH, seed=1), routed_weight(HEIGHT, WIDTH, seed=2)
PLAIN = {dtype: normal(HEIGHT, WIDTH + 5, seed=3, dtype=dtype) for dtype in (torch.bfloat16, torch.float32)}

OPERATIONS: dict[str, Operation] = {
    "fp8": lambda kernels, x: kernels.scaled_linear(x[:, :WIDTH], FP8),
    "fp4": lambda kernels, x: kernels.scaled_linear(x[:, :WIDTH], FP4),
    "fp8 exact input": lambda kernels, x: kernels.dequantized_linear(x[:, :WIDTH], FP8),
    "fp4 exact input": lambda kernels, x: kernels.dequantized_linear(x[:, :WIDTH], FP4),
    "bf16": lambda kernels, x: kernels.linear(x, PLAIN[torch.bfloat16], torch.float32),
    "fp32": lambda kernels, x: kernels.linear(x, PLAIN[torch.float32], torch.float32),
}
each_operation = pytest.mark.parametrize("name", OPERATIONS)


@each_operation
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_row_has_the_same_bits_in_any_number_of_rows(kernels: CpuKernels, name: str, dtype: torch.dtype) -> None:
    x = normal(NUM_ROWS, WIDTH + 5, seed=4, dtype=dtype)
    whole = OPERATIONS[name](kernels, x)
    differing = [count for count in COUNTS if not torch.equal(OPERATIONS[name](kernels, x[:count]), whole[:count])]
    assert differing == []
    assert torch.equal(OPERATIONS[name](kernels, x[150:151]), whole[150:151])


@each_operation
def test_threads_change_no_bit(kernels: CpuKernels, name: str, restored_threads: None) -> None:
    for count in (1, 3, 40):
        x = normal(count, WIDTH + 5, seed=5)
        torch.set_num_threads(1)
        alone = OPERATIONS[name](kernels, x)
        for threads in (2, 3, 5):
            torch.set_num_threads(threads)
            assert torch.equal(OPERATIONS[name](kernels, x), alone), (count, threads)


def test_threads_change_no_bit_of_experts(kernels: CpuKernels, restored_threads: None) -> None:
    bank = [expert_weights(96, 64, seed=100 * number) for number in range(6)]
    shared, x = expert_weights(96, 64, seed=900, shared=True), normal(30, 96, seed=6)
    ids = torch.stack([torch.randperm(6, generator=torch.Generator().manual_seed(row))[:3] for row in range(30)])
    arguments = (x, ids, torch.rand(30, 3, generator=torch.Generator().manual_seed(7)), bank.__getitem__, shared, 10.0)
    torch.set_num_threads(1)
    expected = kernels.experts(*arguments, True)
    for threads in (2, 4):
        torch.set_num_threads(threads)
        for got, one in zip(kernels.experts(*arguments, True), expected, strict=True):
            assert torch.equal(got, one)


@pytest.mark.parametrize("weight", [FP8, FP4], ids=["fp8", "fp4"])
def test_products_stay_inside_the_bound_of_their_additions(kernels: CpuKernels, weight: Quantized) -> None:
    x = normal(9, WIDTH, seed=8, dtype=torch.float32)
    quantized, w = oracle.fp8_32(oracle.numbers(x)), oracle.weight(weight)
    lanes = kernels.library.ask("lanes")
    # Products of codes are exact.  Per lane: 32/lanes terms of a group, then one addition per group; then the lanes.
    # Tiles add 16 even and 16 odd channels of a group and both, then to the total.
    before = 16 if kernels.library.level is Level.AMX else 32 // lanes + int(math.log2(lanes))
    roundings = before + WIDTH // 32
    error = roundings * 2.0**-24 * (np.abs(quantized) @ np.abs(w).T)
    for count in (1, 3, 9):
        assert_close(kernels.scaled_linear(x[:count], weight), quantized[:count] @ w.T, error[:count])


def test_every_code_with_every_scale_is_exact(kernels: CpuKernels) -> None:
    # One channel of the input is 1, so a result is one weight: all codes, scales across the whole range of FP32.
    for make, codes in ((dense, signed_codes(256, 32, seed=9)), (None, random_bytes(0, 256, 256, 16, seed=9))):
        codes[:, 0] = torch.arange(256)
        if make is not None:
            codes[:, 0] = torch.where((codes[:, 0] & 0x7F) == 0x7F, 0x7E, codes[:, 0])
            scales = torch.arange(0, 256, 32, dtype=torch.uint8).view(8, 1)
            weight = dense(codes, scales)
        else:
            weight = routed_weight(256, 32)
            weight = Quantized(
                codes=codes,
                scales=torch.arange(250, dtype=torch.uint8).repeat(2)[:256].view(256, 1),
                element=weight.element,
                scale=weight.scale,
                group=weight.group,
            )
        x = torch.zeros(1, 32)
        x[0, 0] = 1.0
        expected = weight.dequantize()[:, 0]
        assert torch.equal(kernels.scaled_linear(x, weight)[0], expected)
        assert torch.equal(kernels.scaled_linear(x.repeat(7, 1), weight)[6], expected)
        assert torch.equal(kernels.dequantized_linear(x, weight)[0], expected)


def test_a_scale_that_is_nan_is_seen(kernels: CpuKernels) -> None:
    weight = dense(signed_codes(32, 64), torch.tensor([[120, 255]], dtype=torch.uint8))
    assert kernels.scaled_linear(normal(2, 64), weight).isnan().all()


def test_a_weight_with_a_nan_code_is_left_to_the_reference(kernels: CpuKernels) -> None:
    codes = signed_codes(64, 64)
    codes[3, 7] = 0xFF
    weight, x = dense(codes, torch.full((2, 2), 120, dtype=torch.uint8)), normal(3, 64)
    got = kernels.scaled_linear(x, weight)
    assert got[:, 3].isnan().all()
    assert torch.equal(got.isnan(), ReferenceKernels().scaled_linear(x, weight).isnan())
    experts = ExpertWeights(w1=weight, w3=weight, w2=weight)
    arguments = (x, torch.zeros(3, 1, dtype=torch.int64), torch.ones(3, 1), [experts].__getitem__, experts, 10.0, True)
    for got, expected in zip(kernels.experts(*arguments), ReferenceKernels().experts(*arguments), strict=True):
        assert torch.equal(got.isnan(), expected.isnan())


def test_no_rows_give_no_rows(kernels: CpuKernels) -> None:
    empty = torch.zeros(0, WIDTH, dtype=torch.bfloat16)
    assert kernels.scaled_linear(empty, FP8).shape == (0, HEIGHT)
    assert kernels.linear(empty, PLAIN[torch.bfloat16][:, :WIDTH], torch.float32).shape == (0, HEIGHT)
    assert kernels.rms_norm(empty, torch.ones(WIDTH), 1e-6).shape == (0, WIDTH)


def test_parts_and_transposes_are_read_where_they_lie(kernels: CpuKernels) -> None:
    part, x = FP8.slice_rows(32, 64), normal(WIDTH, 5, seed=10).t()
    assert torch.equal(kernels.scaled_linear(x, part), kernels.scaled_linear(x.contiguous(), FP8)[:, 32:64])
    wide = torch.zeros(WIDTH, HEIGHT, dtype=torch.bfloat16).t()
    assert not kernels.linear(x, wide, torch.float32).any()
    columns = PLAIN[torch.bfloat16][:, 3 : 3 + WIDTH]
    assert torch.equal(
        kernels.linear(x, columns, torch.float32), kernels.linear(x, columns.contiguous(), torch.float32)
    )


def test_a_weight_at_an_odd_address_is_read_as_any_other(kernels: CpuKernels) -> None:
    stored = torch.zeros(FP4.codes.numel() + 1, dtype=torch.uint8)
    moved = stored[1:].view(FP4.codes.shape)
    moved.copy_(FP4.codes)
    weight = Quantized(codes=moved, scales=FP4.scales, element=FP4.element, scale=FP4.scale, group=FP4.group)
    for count in (1, 7):
        x = normal(count, WIDTH, seed=11)
        assert torch.equal(kernels.scaled_linear(x, weight), kernels.scaled_linear(x, FP4))
