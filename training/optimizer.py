"""Muon for matrices and AdamW for the rest, with moments that can be taken out and put back; and the router's balance.

Rows of Engram tables are moved by their gradients alone, each table at one scale, the root mean square of a row that
was read.  A row is read once in thousands of tokens: with moments of its own every such step would be as large as any
other, and rows of n-grams that mean nothing would become noise.  Router biases get no gradient: after each step
the bias of an expert that was chosen less than the mean is raised by a fixed amount and that of one chosen more is
lowered (`bias_vl` counts positions of pictures, `bias` all others).
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from training.muon import Muon
from training.state import Moments
from training.team import ALONE, Team

BETAS = (0.9, 0.98)
DECAY = 0.01
"""Weight decay of matrices."""
TABLE_FACTOR = 3.0
"""Rate of a table's rows over that of the others."""
BALANCE_RATE = 5e-3
APART = ("embed", "head.weight", ".gate.", "markov", "hc_", "confidence")
"""Parts of the names of parameters whose rows are learned one by one."""
LARGEST_GRADIENT = 1.0
"""Norm above which gradients are scaled down."""


class Optimizer:
    """Trains `parameters`; those of router biases are left to `balance`."""

    def __init__(
        self, parameters: Mapping[str, nn.Parameter], moments: Mapping[str, Moments], team: Team = ALONE
    ) -> None:
        matrices = {name: value for name, value in parameters.items() if is_matrix(name, value)}
        self._muon = Muon(matrices, {name: one.first for name, one in moments.items()}, DECAY, team)
        self._matrices = matrices
        tables = {name: value for name, value in parameters.items() if _is_table(name)}
        self._tables = Tables(tables, moments)
        self._trained = {
            name: value
            for name, value in parameters.items()
            if name not in matrices and name not in tables and not is_bias(name)
        }
        groups = [
            {"params": [value], "weight_decay": DECAY if value.dim() > 1 else 0.0} for value in self._trained.values()
        ]
        self._adam = torch.optim.AdamW(groups, betas=BETAS, fused=True)
        for name, one in moments.items():
            if name in self._trained:
                self._adam.state[self._trained[name]] = {
                    "step": one.updates,
                    "exp_avg": one.first,
                    "exp_avg_sq": one.second,
                }

    def step(self, learning_rate: float) -> float:
        """One update from the gradients, which are then dropped; returns their norm."""
        every = (*self._trained.values(), *self._matrices.values(), *self._tables.parameters.values())
        gradients = [value for value in every if value.grad is not None]
        norm = float(nn.utils.clip_grad_norm_(gradients, LARGEST_GRADIENT))
        for group in self._adam.param_groups:
            group["lr"] = learning_rate
        self._adam.step()
        self._adam.zero_grad(set_to_none=True)
        self._muon.step(learning_rate)
        self._tables.step(TABLE_FACTOR * learning_rate)
        return norm

    def moments(self) -> dict[str, Moments]:
        """The moments of every parameter that was updated."""
        found = {name: self._adam.state.get(value) for name, value in self._trained.items()}
        adam = {name: Moments(one["exp_avg"], one["exp_avg_sq"], one["step"]) for name, one in found.items() if one}
        none = torch.zeros(0)
        muon = {name: Moments(momentum, none, none) for name, momentum in self._muon.momenta.items()}
        return adam | muon | {name: Moments(none, square, none) for name, square in self._tables.squares.items()}


class Tables:
    """Tables [rows, d] whose rows move by gradient over the running root mean square of rows that were read."""

    def __init__(self, parameters: Mapping[str, nn.Parameter], moments: Mapping[str, Moments]) -> None:
        self.parameters = dict(parameters)
        self.squares = {
            name: one.second for name, one in moments.items() if name in self.parameters and one.second.numel() == 1
        }
        """FP32 [1] by name."""

    @torch.no_grad()
    def step(self, rate: float) -> None:
        """One update of every table that was read; gradients are dropped."""
        for name, table in self.parameters.items():
            if table.grad is None:
                continue
            squares = table.grad.square().sum(1)
            num_read = int((squares > 0).sum())
            if num_read:
                mean = (squares.sum() / (num_read * table.shape[1])).view(1)
                known = self.squares.get(name, mean)
                self.squares[name] = known.lerp(mean, 1.0 - BETAS[1])
                table.addcmul_(table.grad, self.squares[name].rsqrt(), value=-rate)
            table.grad = None


def balance(
    biases: Sequence[nn.Parameter], routes: Sequence[Tensor], kept: Tensor, team: Team = ALONE, *, first: int = 0
) -> float:
    """Moves the biases [E] of each layer by its routes int64 [T, k] at the rows where `kept` bool [T] holds.

    Experts before `first` are left out.  Visits are counted over the team.  Returns the largest share of visits one
    expert had, over the even share.
    """
    visits = [
        torch.bincount(ids[kept].flatten(), minlength=len(bias)) for bias, ids in zip(biases, routes, strict=True)
    ]
    loads = team.total(torch.stack(visits).float())[:, first:]
    if loads[0].sum() == 0:
        return 1.0
    mean = loads.mean(1, keepdim=True)
    with torch.no_grad():
        for bias, moved in zip(biases, torch.sign(mean - loads), strict=True):
            bias[first:].add_(moved, alpha=BALANCE_RATE)
    return float((loads / mean).max())


def is_matrix(name: str, value: Tensor) -> bool:
    """Whether a parameter maps one hidden row to another: no embedding, head, router, or mixing."""
    return value.dim() > 1 and not any(part in name for part in APART)


def is_bias(name: str) -> bool:
    """Whether a parameter is a router's selection bias."""
    return name.endswith((".gate.bias", ".gate.bias_vl"))


def _is_table(name: str) -> bool:
    return name.endswith(".engram.embed.weight")
