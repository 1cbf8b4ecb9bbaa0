"""Seeded random tensors and weights in their stored formats, and what kernel tests assert about results."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flash41.kernels.interface import ExpertWeights
from flash41.numerics.scaled import ElementFormat, Quantized, ScaleFormat

VECTORS = Path(__file__).resolve().parents[1] / "data" / "kernels"
BATCH_SIZES = (1, 2, 6)
HALF_UNIT = {torch.bfloat16: 2.0**-8, torch.float32: 2.0**-24}
"""Largest relative error of one store."""


def vectors(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((VECTORS / f"{name}.json").read_text(encoding="utf-8"))
    return content


def normal(*shape: int, seed: int = 0, sigma: float = 1.0, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return (torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * sigma).to(dtype)


def random_bytes(low: int, high: int, *shape: int, seed: int = 0) -> Tensor:
    return torch.randint(low, high, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def signed_codes(*shape: int, seed: int = 0) -> Tensor:
    """E4M3 codes of either sign, none of them NaN."""
    return random_bytes(0, 0x7F, *shape, seed=seed) | (random_bytes(0, 2, *shape, seed=seed + 1) << 7)


def dense(codes: Tensor, scales: Tensor) -> Quantized:
    """A dense FP8 weight: one E8M0 scale per 32 x 32."""
    return Quantized(codes=codes, scales=scales, element=ElementFormat.E4M3, scale=ScaleFormat.E8M0, group=(32, 32))


def routed(codes: Tensor, scales: Tensor) -> Quantized:
    """A routed FP4 weight: one E8M0 scale per 32 channels of a row."""
    return Quantized(codes=codes, scales=scales, element=ElementFormat.E2M1, scale=ScaleFormat.E8M0, group=(1, 32))


def dense_weight(num_rows: int, width: int, seed: int = 0) -> Quantized:
    grid = (-(-num_rows // 32), width // 32)
    return dense(signed_codes(num_rows, width, seed=seed), random_bytes(113, 120, *grid, seed=seed + 2))


def routed_weight(num_rows: int, width: int, seed: int = 0) -> Quantized:
    codes = random_bytes(0, 256, num_rows, width // 2, seed=seed)
    return routed(codes, random_bytes(117, 124, num_rows, width // 32, seed=seed + 2))


def in_bands(weight: Quantized) -> Quantized:
    """The same weight in memory of its own, laid out in bands."""
    copied = replace(weight, codes=weight.codes.clone(), scales=weight.scales.clone()).put_in_bands()
    assert copied.in_bands, f"{weight.shape} is no whole number of bands"
    return copied


def expert_weights(width: int, inner: int, seed: int = 0, shared: bool = False) -> ExpertWeights:
    make = dense_weight if shared else routed_weight
    return ExpertWeights(
        w1=make(inner, width, seed=seed), w3=make(inner, width, seed=seed + 10), w2=make(width, inner, seed=seed + 20)
    )


def assert_close(got: Tensor, exact: np.ndarray, error: np.ndarray | float = 0.0) -> None:
    """Every number is `exact` up to `error` and one rounding to the dtype of `got`."""
    assert tuple(got.shape) == exact.shape, f"shape {tuple(got.shape)}, expected {exact.shape}"
    slack = error + HALF_UNIT[got.dtype] * (np.abs(exact) + error)
    excess = np.abs(got.double().numpy() - exact) - slack
    assert (excess <= 0).all(), (
        f"{(~(excess <= 0)).sum()} numbers off, the worst by {np.nanmax(excess)} above its bound"
    )


def assert_rows_stand_alone(compute: Callable[[Tensor], Tensor | tuple[Tensor, ...]], num_rows: int = 64) -> None:
    """`compute(row numbers)` gives each row the same bits with 1, 2, 6 and `num_rows` rows in the call."""
    whole = _tuple(compute(torch.arange(num_rows)))
    for size in BATCH_SIZES:
        for first in {0, 7, 31, num_rows - size}:
            part = torch.arange(first, first + size)
            for got, expected in zip(_tuple(compute(part)), whole, strict=True):
                assert torch.equal(got, expected[part]), f"rows {first}..{first + size - 1} alone differ"
    backwards = torch.arange(num_rows - 1, -1, -1)
    for got, expected in zip(_tuple(compute(backwards)), whole, strict=True):
        assert torch.equal(got, expected[backwards]), "the order of the rows matters"


def _tuple(result: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return (result,) if isinstance(result, Tensor) else result
