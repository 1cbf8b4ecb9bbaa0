"""Orthogonal steps: what they are made of, their size, and that a resumed run goes on."""

import pytest
import torch
from torch import Tensor, nn

from training.muon import MOMENTUM, STEP_SIZE, Muon, orthogonal
from training.optimizer import Optimizer, is_matrix


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def test_singular_values_end_near_one_whatever_they_were() -> None:
    spread = torch.logspace(0, -1, 24)
    u, v = torch.linalg.qr(drawn(3, 24, 24))[0], torch.linalg.qr(drawn(3, 40, 40, seed=1))[0][..., :24]
    values = torch.linalg.svdvals(orthogonal(u @ torch.diag(spread) @ v.mT))
    assert values.min() > 0.5
    assert values.max() < 1.3


def test_directions_stay_those_of_the_matrix() -> None:
    matrix = drawn(1, 16, 32)
    left, _, right = torch.linalg.svd(matrix[0], full_matrices=False)
    overlap = torch.diagonal(left.mT @ orthogonal(matrix)[0] @ right.mT)
    assert overlap.min() > 0.5, "every direction keeps its sign"


@pytest.mark.parametrize("shape", [(16, 32), (32, 16), (3, 32, 16)])
def test_a_step_has_the_size_of_one_of_adam(shape: tuple[int, ...]) -> None:
    value = nn.Parameter(torch.zeros(shape))
    value.grad = drawn(*shape)
    Muon({"w": value}, {}, 0.0).step(1e-2)
    size = float(value.detach().square().mean().sqrt()) / 1e-2
    # An orthogonal [16, 32] has mean square 1/32; times sqrt(32) and the factor.
    assert STEP_SIZE * 0.6 < size < STEP_SIZE * 1.3
    assert value.grad is None


def test_matrices_of_one_shape_do_not_disturb_each_other() -> None:
    gradients = [drawn(8, 16, seed=seed) for seed in range(3)]
    together = {str(number): nn.Parameter(torch.zeros(8, 16)) for number in range(3)}
    for value, gradient in zip(together.values(), gradients, strict=True):
        value.grad = gradient.clone()
    Muon(together, {}, 0.0).step(1.0)
    for value, gradient in zip(together.values(), gradients, strict=True):
        alone = nn.Parameter(torch.zeros(8, 16))
        alone.grad = gradient.clone()
        Muon({"w": alone}, {}, 0.0).step(1.0)
        torch.testing.assert_close(value, alone)


def test_momentum_is_kept_and_weights_decay() -> None:
    value = nn.Parameter(torch.ones(4, 8))
    muon = Muon({"w": value}, {}, 0.5)
    first, second = drawn(4, 8), drawn(4, 8, seed=1)
    for gradient in (first, second):
        value.grad = gradient.clone()
        muon.step(0.0 if gradient is first else 0.1)
    torch.testing.assert_close(muon.momenta["w"], MOMENTUM * first + second)
    ahead = second + MOMENTUM * muon.momenta["w"]
    torch.testing.assert_close(
        value.detach(), 0.95 - 0.1 * STEP_SIZE * 8**0.5 * orthogonal(ahead.unsqueeze(0))[0], atol=1e-5, rtol=1e-5
    )


def test_a_matrix_without_a_gradient_rests() -> None:
    value = nn.Parameter(torch.ones(4, 8))
    muon = Muon({"w": value}, {}, 0.5)
    muon.step(0.1)
    assert torch.equal(value.detach(), torch.ones(4, 8))
    assert muon.momenta == {}


def test_moments_of_both_kinds_go_out_and_come_back() -> None:
    def parameters() -> dict[str, nn.Parameter]:
        return {"embed.weight": nn.Parameter(drawn(6, 8)), "layers.0.attn.wo_b.weight": nn.Parameter(drawn(8, 8))}

    def step(values: dict[str, nn.Parameter], optimizer: Optimizer, seed: int) -> None:
        for number, value in enumerate(values.values()):
            value.grad = drawn(*value.shape, seed=seed + number)
        optimizer.step(1e-2)

    whole = parameters()
    once = Optimizer(whole, {})
    step(whole, once, 10)
    resumed = {name: nn.Parameter(value.detach().clone()) for name, value in whole.items()}
    kept = {
        name: type(one)(*(part.clone() for part in (one.first, one.second, one.updates)))
        for name, one in once.moments().items()
    }
    assert set(kept) == set(whole)
    step(whole, once, 20)
    step(resumed, Optimizer(resumed, kept), 20)
    for name, value in whole.items():
        assert torch.equal(value, resumed[name]), name


def test_rows_that_are_learned_one_by_one_are_no_matrices() -> None:
    square = torch.zeros(4, 4)
    assert is_matrix("layers.0.attn.wq_b.weight", square)
    assert is_matrix("layers.0.ffn.experts.w1", torch.zeros(2, 4, 4))
    apart = ("embed.weight", "head.weight", "layers.0.engram.embed.weight", "layers.0.ffn.gate.weight")
    assert not any(is_matrix(name, square) for name in (*apart, "layers.1.hc_attn_fn", "mtp.2.markov_head.w1.weight"))
    assert not is_matrix("norm.weight", torch.zeros(4))
