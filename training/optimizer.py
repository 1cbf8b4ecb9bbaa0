"""Muon for matrices and AdamW for the rest, with moments that can be taken out and put back; and the router's balance.

Engram tables learn faster: a row is met once in thousands of tokens.  Router biases get no gradient: after each step
the bias of an expert that was chosen less than the mean is raised by a fixed amount and that of one chosen more is
lowered (`bias_vl` counts positions of pictures, `bias` all others).
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from training.muon import Muon
from training.state import Moments

BETAS = (0.9, 0.98)
DECAY = 0.01
"""Weight decay of matrices."""
TABLE_FACTOR = 3.0
BALANCE_RATE = 5e-3
APART = ("embed", "head.weight", ".gate.", "markov", "hc_", "confidence")
"""Parts of the names of parameters whose rows are learned one by one."""
LARGEST_GRADIENT = 1.0
"""Norm above which gradients are scaled down."""


class Optimizer:
    """Trains `parameters`; those of router biases are left to `balance`."""

    def __init__(self, parameters: Mapping[str, nn.Parameter], moments: Mapping[str, Moments]) -> None:
        matrices = {name: value for name, value in parameters.items() if is_matrix(name, value)}
        self._muon = Muon(matrices, {name: one.first for name, one in moments.items()}, DECAY)
        self._matrices = matrices
        self._trained = {
            name: value for name, value in parameters.items() if name not in matrices and not is_bias(name)
        }
        groups = [
            {"params": [value], "weight_decay": DECAY if value.dim() > 1 and not _is_table(name) else 0.0}
            for name, value in self._trained.items()
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
        every = (*self._trained.values(), *self._matrices.values())
        gradients = [value for value in every if value.grad is not None]
        norm = float(nn.utils.clip_grad_norm_(gradients, LARGEST_GRADIENT))
        for group, name in zip(self._adam.param_groups, self._trained, strict=True):
            group["lr"] = learning_rate * (TABLE_FACTOR if _is_table(name) else 1.0)
        self._adam.step()
        self._adam.zero_grad(set_to_none=True)
        self._muon.step(learning_rate)
        return norm

    def moments(self) -> dict[str, Moments]:
        """The moments of every parameter that was updated."""
        found = {name: self._adam.state.get(value) for name, value in self._trained.items()}
        adam = {name: Moments(one["exp_avg"], one["exp_avg_sq"], one["step"]) for name, one in found.items() if one}
        none = torch.zeros(0)
        return adam | {name: Moments(momentum, none, none) for name, momentum in self._muon.momenta.items()}


def balance(biases: Sequence[nn.Parameter], routes: Sequence[Tensor], kept: Tensor) -> float:
    """Moves the biases [E] of each layer by its routes int64 [T, k] at the rows where `kept` bool [T] holds.

    Returns the largest share of visits one expert had, over the even share.
    """
    worst = 1.0
    for bias, ids in zip(biases, routes, strict=True):
        loads = torch.bincount(ids[kept].flatten(), minlength=len(bias)).float()
        if loads.sum() > 0:
            worst = max(worst, float(loads.max() / loads.mean()))
            with torch.no_grad():
                bias.add_(torch.sign(loads.mean() - loads), alpha=BALANCE_RATE)
    return worst


def is_matrix(name: str, value: Tensor) -> bool:
    """Whether a parameter maps one hidden row to another: no embedding, head, router, or mixing."""
    return value.dim() > 1 and not any(part in name for part in APART)


def is_bias(name: str) -> bool:
    """Whether a parameter is a router's selection bias."""
    return name.endswith((".gate.bias", ".gate.bias_vl"))


def _is_table(name: str) -> bool:
    return name.endswith(".engram.embed.weight")
