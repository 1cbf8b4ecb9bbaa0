"""Muon: momentum whose matrices are made near orthogonal, so that every direction of a weight learns at one pace.

    m = 0.95 m + g,   u = orthogonal(g + 0.95 m),   w -= rate * 0.2 sqrt(max(N, K)) * u

`orthogonal` is five rounds of the quintic iteration X <- a X + (b A + c A^2) X, A = X X^T, from X / |X|: singular
values end between 0.7 and 1.2, which is near enough.  The factor gives a step the size AdamW's have, so both share a
rate.  All matrices of a shape are iterated as one batch: a layer's experts lie in one master already.

Source: Jordan et al., Muon (2024); the size of a step is that of Liu et al., arXiv 2502.16982.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from training.team import ALONE, Team

MOMENTUM = 0.95
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
ROUNDS = 5
STEP_SIZE = 0.2
"""Root mean square of a step of AdamW, over its rate."""


def orthogonal(matrices: Tensor) -> Tensor:
    """FP32 [n, N, K], N <= K, with all singular values near one."""
    a, b, c = COEFFICIENTS
    x: Tensor = matrices / (matrices.flatten(1).norm(dim=1).view(-1, 1, 1) + 1e-7)
    for _ in range(ROUNDS):
        square = torch.bmm(x, x.mT)
        factor = torch.baddbmm(square, square, square, beta=b, alpha=c)
        factor.diagonal(dim1=-2, dim2=-1).add_(a)
        x = torch.bmm(factor, x)
    return x


class Muon:
    """Trains matrices [..., N, K] by name; `momenta` are those a stopped run left."""

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        momenta: Mapping[str, Tensor],
        decay: float,
        team: Team = ALONE,
    ) -> None:
        self._parameters = dict(parameters)
        self.momenta: dict[str, Tensor] = {name: one for name, one in momenta.items() if name in self._parameters}
        self._decay = decay
        self._team = team

    @torch.no_grad()
    def step(self, rate: float) -> None:
        """One update of every matrix that has a gradient, which is then dropped."""
        batches: dict[tuple[int, int], list[tuple[nn.Parameter, Tensor]]] = {}
        for name, value in self._parameters.items():
            if value.grad is None:
                continue
            momentum = self.momenta.setdefault(name, torch.zeros_like(value))
            momentum.mul_(MOMENTUM).add_(value.grad)
            ahead = value.grad.add_(momentum, alpha=MOMENTUM)
            wide = _wide(ahead)
            batches.setdefault((wide.shape[1], wide.shape[2]), []).append((value, wide))
            value.grad = None
        for found in batches.values():
            self._turn(found, rate)

    def _turn(self, found: Sequence[tuple[nn.Parameter, Tensor]], rate: float) -> None:
        steps = self._team.spread(orthogonal, torch.cat([wide for _, wide in found]))
        size = STEP_SIZE * max(steps.shape[1:]) ** 0.5
        for (value, _), step in zip(found, steps.split([len(wide) for _, wide in found]), strict=True):
            turned = step if value.shape[-2] <= value.shape[-1] else step.mT
            value.mul_(1.0 - rate * self._decay).sub_(turned.reshape(value.shape), alpha=rate * size)


def _wide(gradient: Tensor) -> Tensor:
    """[n, N, K] with N <= K."""
    matrices = gradient.reshape(-1, *gradient.shape[-2:])
    return matrices if matrices.shape[1] <= matrices.shape[2] else matrices.mT
