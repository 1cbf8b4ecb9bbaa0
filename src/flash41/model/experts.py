"""The routed experts of one layer as the model asks for them, and a guess at those of the next layer.

The router of layer l + 1 is applied to the input of layer l's experts.  The residual changes little from layer to
layer, so its choice is often the one to come; it only decides what is read ahead, never what is computed.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from flash41.checkpoint.dense_ahead import DenseAhead
from flash41.checkpoint.layer_experts import LayerExperts
from flash41.checkpoint.loader import Checkpoint
from flash41.kernels.interface import ExpertWeights, Kernels

MOST_GUESSED_ROWS = 16
"""Rows of a forward beyond which nearly all experts are chosen, and a guess says nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Guess:
    """The next layer's router, and its experts."""

    gate: Tensor
    bias: Tensor
    topk: int
    experts: LayerExperts
    kernels: Kernels

    def __call__(self, x: Tensor) -> None:
        """Asks for what the next layer probably chooses, from this layer's input x [T, D]."""
        logits = self.kernels.linear(x, self.gate, torch.float32)
        self.experts.expect(_named(self.kernels.route(logits, self.bias, self.topk, 1.0)[0]))


class RoutedExperts:
    """The experts below one prefix, taken from the mapping or from memory when a token is routed to them."""

    def __init__(self, checkpoint: Checkpoint, prefix: str) -> None:
        self.guess: Guess | None = None
        self.following: DenseAhead | None = None
        """Dense weights that are read behind these experts."""
        self.managed = checkpoint.layer_experts(prefix)
        self._checkpoint = checkpoint
        self._prefix = prefix
        self._mapped: dict[int, ExpertWeights] = {}
        self._held: dict[int, ExpertWeights] = {}
        checkpoint.claim(prefix)

    def want(self, ids: Tensor, x: Tensor) -> None:
        """Says which experts a forward reads now; x [T, D] is their input."""
        if self.managed is None:
            return
        for expert_id in self.managed.want(_named(ids)):
            self._held.pop(expert_id, None)
        if self.following is not None:
            self.following.request()  # before a guess: they are read first
        if self.guess is not None and len(x) <= MOST_GUESSED_ROWS and self.guess.experts.expects:
            self.guess(x)

    def __call__(self, expert_id: int) -> ExpertWeights:
        """One expert's stored weights."""
        if expert_id in self._held:
            return self._held[expert_id]
        if expert_id not in self._mapped:
            self._mapped[expert_id] = expert_weights(self._checkpoint, f"{self._prefix}.{expert_id}")
        weights = self._mapped[expert_id]
        held = self.managed and self.managed.held(expert_id, (weights.w1, weights.w3, weights.w2))
        if not held:
            return weights
        # A new record for every stay in memory: a backend that keeps what it made of a weight knows it by its record.
        self._held[expert_id] = ExpertWeights(w1=held[0], w3=held[1], w2=held[2])
        return self._held[expert_id]


def expert_weights(checkpoint: Checkpoint, prefix: str) -> ExpertWeights:
    """`w1`, `w3` and `w2` below a prefix."""
    return ExpertWeights(
        w1=checkpoint.quantized(f"{prefix}.w1"),
        w3=checkpoint.quantized(f"{prefix}.w3"),
        w2=checkpoint.quantized(f"{prefix}.w2"),
    )


def _named(ids: Tensor) -> list[int]:
    """Every expert of a choice [T, k] once, ascending."""
    return sorted(set(ids.flatten().tolist()))
