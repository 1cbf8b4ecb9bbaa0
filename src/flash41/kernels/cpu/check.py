"""A first look at a library just loaded: does it multiply as the reference does?

A compiler that flushes subnormals or reorders additions, or an instruction that a virtual machine announces and does
not have, would otherwise show in answers only.  Costs a millisecond or two.
"""

import torch
from torch import Tensor

from flash41.errors import KernelError, complaint
from flash41.kernels.interface import Kernels
from flash41.kernels.reference.backend import ReferenceKernels
from flash41.numerics.scaled import ElementFormat, Quantized, ScaleFormat

NUM_ROWS = 36
WIDTH = 320
NUM_INPUTS = 6
ROUNDINGS = WIDTH // 32 + 16
"""Of FP32 sums, per result; see `kernels.cpu.products`."""


def check_products(kernels: Kernels) -> None:
    """Compares products of every FP8 and FP4 code with the reference; raises KernelError where they differ.

    The rows of one call must also have the bits each has alone.
    """
    reference = ReferenceKernels(0)
    x = torch.arange(NUM_INPUTS * WIDTH).mul(37).remainder(1009).sub(504).view(NUM_INPUTS, WIDTH) / 128
    x = x.bfloat16().float()
    for weight in (_fp8(), _fp4()):
        expected, got = reference.scaled_linear(x, weight), kernels.scaled_linear(x, weight)
        size = reference.linear(x.abs() * 1.0625, weight.dequantize().abs(), torch.float32)
        alone = torch.cat([kernels.scaled_linear(x[row : row + 1], weight) for row in range(NUM_INPUTS)])
        _demand(bool(((got - expected).abs() <= ROUNDINGS * 2.0**-24 * size).all()), weight, "the reference's products")
        _demand(torch.equal(got, alone), weight, "rows that do not depend on their neighbours")


def _demand(holds: bool, weight: Quantized, expected: str) -> None:
    if not holds:
        raise KernelError(complaint(f"compiled products of {weight.element.value} weights", "other numbers", expected))


def _codes(num_bytes: int) -> Tensor:
    return torch.arange(NUM_ROWS * num_bytes).mul(41).remainder(256).to(torch.uint8).view(NUM_ROWS, num_bytes)


def _fp8() -> Quantized:
    codes = _codes(WIDTH)
    codes[(codes & 0x7F) == 0x7F] = 0x01  # a NaN is left to the reference; take one subnormal more
    scales = torch.arange(2 * WIDTH // 32).remainder(7).add(117).to(torch.uint8).view(2, WIDTH // 32)
    return Quantized(codes=codes, scales=scales, element=ElementFormat.E4M3, scale=ScaleFormat.E8M0, group=(32, 32))


def _fp4() -> Quantized:
    scales = torch.arange(NUM_ROWS * WIDTH // 32).remainder(9).add(116).to(torch.uint8).view(NUM_ROWS, WIDTH // 32)
    return Quantized(
        codes=_codes(WIDTH // 2), scales=scales, element=ElementFormat.E2M1, scale=ScaleFormat.E8M0, group=(1, 32)
    )
