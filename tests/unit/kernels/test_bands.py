"""Constants that bound scratch memory never change a bit of a result."""

from collections.abc import Callable

import pytest
import torch

from flash41.kernels.reference.backend import ReferenceKernels
from helpers.tensors import dense_weight, expert_weights, normal, routed_weight

ATTENTION = "flash41.kernels.reference.attention.SCRATCH_ELEMENTS"
INDEX = "flash41.kernels.reference.index.SCRATCH_ELEMENTS"
DECODED = "flash41.kernels.reference.decoded.ELEMENTS_PER_BAND"


def attention() -> torch.Tensor:
    q, rows = normal(9, 2, 64, seed=1), normal(50, 64, seed=2)
    index = torch.arange(9 * 70).view(9, 70) % 50
    return ReferenceKernels().sparse_attention(q, rows, index, torch.arange(9) * 8, torch.zeros(2), 0.125)


def scores() -> torch.Tensor:
    q, keys = normal(2, 7, 4, 64, seed=1), normal(2, 30, 64, seed=2)
    return ReferenceKernels().index_scores(q, keys, normal(2, 7, 4, seed=3, dtype=torch.float32))


def products() -> torch.Tensor:
    kernels, x = ReferenceKernels(), normal(5, 96, seed=1)
    fp8, fp4 = dense_weight(160, 96, seed=2), routed_weight(160, 96, seed=3)
    return torch.cat(
        [
            kernels.scaled_linear(x, fp8),
            kernels.scaled_linear(x, fp4),
            *kernels.scaled_linears(x, [fp8, fp4]),
            kernels.dequantized_linear(x, fp8),
            kernels.dequantized_linear(x, fp4),
            kernels.linear(x, normal(70, 96, seed=4), torch.bfloat16),
            kernels.grouped_linear(normal(5, 2, 96, seed=5), [fp8, dense_weight(160, 96, seed=6)]).flatten(1),
        ],
        -1,
    )


def experts() -> torch.Tensor:
    x, ids = normal(5, 96, seed=1), torch.tensor([[0, 1], [1, 2], [0, 2], [0, 1], [1, 2]])
    bank = [expert_weights(96, 64, seed=100 * number) for number in range(3)]
    return torch.cat(ReferenceKernels().experts(x, ids, torch.ones(5, 2), bank.__getitem__, bank[0], 10.0, True), -1)


@pytest.mark.parametrize("size", [1, 97, 5000])
@pytest.mark.parametrize(
    ("compute", "constant"),
    [(attention, ATTENTION), (scores, INDEX), (products, DECODED), (experts, DECODED)],
    ids=["attention", "index_scores", "linear", "experts"],
)
def test_narrow_bands_give_the_same_bits(
    compute: Callable[[], torch.Tensor], constant: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = compute()
    monkeypatch.setattr(constant, size)
    assert torch.equal(compute(), expected)


@pytest.mark.parametrize("budget_bytes", [0, 100_000])
def test_a_small_budget_for_decoded_weights_gives_the_same_bits(budget_bytes: int) -> None:
    x = normal(5, 96, seed=1)
    weights = [dense_weight(64, 96, seed=seed) for seed in range(4)]
    small, large = ReferenceKernels(budget_bytes), ReferenceKernels()
    for _ in range(2):
        for weight in weights:
            for operation in ("scaled_linear", "dequantized_linear"):
                assert torch.equal(getattr(small, operation)(x, weight), getattr(large, operation)(x, weight))
