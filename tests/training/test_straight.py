"""Every rounding gives the number the engine or the checkpoint will hold, and passes gradients unchanged."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from flash41.checkpoint.quantize import quantize_dense, quantize_expert, quantize_table
from flash41.numerics.scaled import fake_fp4_16, fake_fp4_32, fake_fp8_32
from training.model.straight import bf16, dense_fp8, fp4_16, fp4_32, fp8_32

PAIRS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "activations": (fp8_32, fake_fp8_32),
    "index rows": (fp4_32, fake_fp4_32),
    "compressed rows": (fp4_16, fake_fp4_16),
    "dense weights": (dense_fp8, lambda x: quantize_dense(x).dequantize()),
    "experts": (fp4_32, lambda x: quantize_expert(x).dequantize()),
    "tables": (fp8_32, lambda x: quantize_table(x).dequantize()),
    "stores": (bf16, lambda x: x.to(torch.bfloat16).float()),
}
each = pytest.mark.parametrize("name", list(PAIRS))


@each
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), exponent=st.integers(-24, 24))
def test_a_rounded_value_is_the_stored_one(name: str, seed: int, exponent: int) -> None:
    ours, stored = PAIRS[name]
    x = torch.randn(64, 96, generator=torch.Generator().manual_seed(seed)) * 2.0**exponent
    x[:2], x[2, :32], x[3, 5] = 0.0, 1e-30, 448.0 * 2.0**exponent
    assert torch.equal(ours(x), stored(x))


@each
def test_the_gradient_passes_as_if_nothing_were_rounded(name: str) -> None:
    x = torch.randn(32, 32, generator=torch.Generator().manual_seed(1)).requires_grad_()
    weights = torch.randn(32, 32, generator=torch.Generator().manual_seed(2))
    rounded = PAIRS[name][0](x)
    assert not torch.equal(rounded, x)
    (rounded * weights).sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, weights)


def test_matrices_of_a_stack_are_rounded_one_by_one() -> None:
    stack = torch.randn(3, 64, 32, generator=torch.Generator().manual_seed(4))
    assert torch.equal(dense_fp8(stack), torch.stack([dense_fp8(one) for one in stack]))
