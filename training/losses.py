"""The losses of both stages.

Target.  Cross entropy of marked tokens, weighted, plus the scorers' imitation loss (`model.tape`).
Drafter.  spec: dspark.md section 10; with w_i = e^(-i/4) for row i of a block,

    0.1 CE(label) + 0.9 sum|p_d - p_t| + BCE(confidence, 1 - 0.5 sum|p_d - p_t|),    each over the sum of weights
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from flash41.model.draft_heads import Drafts

CE_PART, DISTANCE_PART, CONFIDENCE_PART = 0.1, 0.9, 1.0
FADING = 4.0
"""Rows over which the weight of a draft falls by e."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftLosses:
    """The terms of the drafter's loss, each a scalar."""

    label: Tensor
    """Cross entropy."""
    distance: Tensor
    """Sum of absolute differences of probabilities."""
    confidence: Tensor
    """Binary cross entropy of the confidence."""
    accepted: Tensor
    """Without gradient: expected share of first drafts that a sampling target accepts, 1 - distance / 2."""

    @property
    def total(self) -> Tensor:
        """Their weighted sum."""
        return CE_PART * self.label + DISTANCE_PART * self.distance + CONFIDENCE_PART * self.confidence


def token_losses(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross entropy [n] of logits [n, vocab] with labels int64 [n]."""
    return functional.cross_entropy(logits, labels, reduction="none")


def weighted_mean(losses: Tensor, weights: Tensor) -> Tensor:
    """Scalar mean of losses [n] with weights [n]."""
    return (losses * weights).sum() / weights.sum()


def by_family(losses: Tensor, families: Sequence[str]) -> dict[str, float]:
    """Mean of losses [n] by the family of each."""
    found: dict[str, list[float]] = {}
    for family, loss in zip(families, losses.tolist(), strict=True):
        found.setdefault(family, []).append(loss)
    return {family: sum(values) / len(values) for family, values in found.items()}


def draft_losses(drafts: Drafts, labels: Tensor, target: Tensor, valid: Tensor) -> DraftLosses:
    """Losses of blocks: labels int64 [n, g], target's logits FP32 [n, g, vocab], valid bool [n, g] (a prefix)."""
    weights = torch.exp(-torch.arange(labels.shape[1]) / FADING) * valid
    total = weights.sum()
    proposed, wanted = drafts.logits.softmax(-1), target.softmax(-1)
    distance = (proposed - wanted).abs().sum(-1)
    label = functional.cross_entropy(drafts.logits.flatten(0, 1), labels.flatten(), reduction="none").view_as(weights)
    accepted = (1.0 - 0.5 * distance).detach()
    confidence = functional.binary_cross_entropy_with_logits(drafts.confidence, accepted, reduction="none")
    return DraftLosses(
        label=(label * weights).sum() / total,
        distance=(distance * weights).sum() / total,
        confidence=(confidence * weights).sum() / total,
        accepted=accepted[:, 0][valid[:, 0]].mean(),
    )
