"""Attention of every row to all rows.  spec: vision.md section 4."""

from types import ModuleType

import numpy as np
import pytest
import torch
from torch import Tensor

from flash41.kernels.interface import Kernels
from flash41.kernels.reference import full_attention as module
from helpers.tensors import assert_close, normal

HEADS, WIDTH = 3, 16
SCALE = WIDTH**-0.5


def exact(q: Tensor, k: Tensor, v: Tensor) -> np.ndarray:
    wide = [x.double().numpy().transpose(1, 0, 2) for x in (q, k, v)]
    logits = wide[0] @ wide[1].transpose(0, 2, 1) * SCALE
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    return (weights @ wide[2] / weights.sum(-1, keepdims=True)).transpose(1, 0, 2)


def qkv(num_rows: int, dtype: torch.dtype = torch.bfloat16, sigma: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = (normal(num_rows, HEADS, WIDTH, seed=seed, sigma=sigma, dtype=dtype) for seed in (1, 2, 3))
    return q, k, v


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("num_rows", [1, 2, 47, 300])
def test_every_row_attends_to_all_rows(kernels: Kernels, dtype: torch.dtype, num_rows: int) -> None:
    q, k, v = qkv(num_rows, dtype)
    got = kernels.full_attention(q, k, v, SCALE)
    assert got.dtype is dtype
    # A logit of up to 16 is rounded to FP32 twice, its exponential, the sum and the quotient once each.
    assert_close(got, exact(q, k, v), 2.0**-24 * (2 * 16 + 3) * np.abs(v.double().numpy()).max())


def test_large_logits_neither_overflow_nor_lose_the_largest(kernels: Kernels) -> None:
    q, k, v = qkv(20, torch.float32, sigma=40.0)
    got = kernels.full_attention(q, k, v, SCALE)
    assert torch.isfinite(got).all()
    assert_close(got, exact(q, k, v), 2.0**-24 * 2 * 9000 * 200)


def test_equal_keys_give_the_mean_of_the_values(kernels: Kernels) -> None:
    q, k, v = qkv(10, torch.float32)
    got = kernels.full_attention(q, k[:1].expand_as(k).contiguous(), v, SCALE)
    assert_close(got, v.double().mean(0, keepdim=True).expand(10, -1, -1).numpy(), 1e-6)


def test_bands_of_queries_change_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = qkv(47)
    whole = module.full_attention(q, k, v, SCALE)
    in_bands(monkeypatch, module, 47 * 5)
    assert torch.equal(module.full_attention(q, k, v, SCALE), whole)


def in_bands(monkeypatch: pytest.MonkeyPatch, where: ModuleType, logits: int) -> None:
    monkeypatch.setattr(where, "LOGITS_PER_BAND", logits)
