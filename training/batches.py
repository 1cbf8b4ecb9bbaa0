"""Batches of rendered samples: sequences of about one length, padded at the end.

A pool of samples is rendered, sorted by length and cut into batches, which come in random order.  Pool p of a phase is
a function of (seed, split, p, phase), so two numbers say where a run stands: its pool and the batch in it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

import torch
from torch import Tensor

from flash41.chat.images import Picture
from training.corpus.mixture import sample
from training.corpus.render import Example, Renderer
from training.curriculum import Phase, mixture

POOL_SAMPLES = 192
MOST_PICTURES = 64
"""Samples with pictures in a batch: they are short, and one that holds hundreds is one step for all of them."""
LENGTH_STEP = 8
"""Lengths are rounded up to multiples of this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Sequences of one length with the weight of every prediction."""

    ids: Tensor
    """int64 [R, L]."""
    weights: Tensor
    """FP32 [R, L]: weight of the loss of predicting this token from those before it; 0 for padding and the first."""
    num_tokens: int
    """Tokens that are not padding."""
    pictures: tuple[Picture, ...]
    """In the order of their spans, sequence after sequence."""
    families: tuple[str, ...]
    """Of each sequence."""
    hidden: Tensor | None = None
    """bool [R, L]: tokens that layers up to the candidate source do not read from planes; None where there are none."""
    confined: Tensor | None = None
    """bool [R]: sequences whose bounded scorers are given the candidate source's own selection."""
    tableless: Tensor | None = None
    """bool [R]: sequences to which no n-gram row is added."""
    misrouted: Tensor | None = None
    """bool [R]: sequences whose pictures choose experts with the bias of text; None where there are none."""


@dataclass(slots=True)
class Position:
    """Where a run stands in its endless corpus."""

    pool: int = 0
    batch: int = 0
    phase: str = ""
    """Phase of the pool; another one begins with a new pool."""


class Batches:
    """The batches of one split in order, from a position on, which moves along."""

    def __init__(self, renderer: Renderer, pad: int, seed: int, split: str, position: Position) -> None:
        self._renderer = renderer
        self._pad = pad
        self._seed = seed
        self._split = split
        self.position = position
        self._made: list[list[Example]] | None = None

    def next(self, phase: Phase, weights: Mapping[str, float]) -> Batch:
        """The next batch of a phase."""
        position = self.position
        if position.phase not in ("", phase.name):
            self._turn()
        position.phase = phase.name
        made = self._made or self._pool(phase, weights)
        while position.batch >= len(made):
            self._turn()
            made = self._pool(phase, weights)
        self._made = made
        examples = made[position.batch]
        position.batch += 1
        return collate(examples, self._pad, phase.prompt_weight)

    def _turn(self) -> None:
        self.position.pool, self.position.batch, self._made = self.position.pool + 1, 0, None

    def _pool(self, phase: Phase, weights: Mapping[str, float]) -> list[list[Example]]:
        first, mixed = self.position.pool * POOL_SAMPLES, mixture(phase, weights)
        numbers = range(first, first + POOL_SAMPLES)
        examples = [self._renderer.example(sample(self._seed, self._split, number, mixed)) for number in numbers]
        fitting = sorted((one for one in examples if len(one.ids) <= phase.longest), key=lambda one: len(one.ids))
        batches = _cut([one for one in fitting if not one.pictures], phase.batch_tokens)
        batches += _cut([one for one in fitting if one.pictures], phase.batch_tokens, MOST_PICTURES)
        Random(f"{self._seed}/{self._split}/{self.position.pool}/order").shuffle(batches)
        return batches


def collate(examples: Sequence[Example], pad: int, prompt_weight: float) -> Batch:
    """Examples side by side."""
    length = _padded(max(len(one.ids) for one in examples))
    ids = torch.full((len(examples), length), pad)
    weights = torch.zeros(len(examples), length)
    hidden = torch.zeros(len(examples), length, dtype=torch.bool)
    for number, one in enumerate(examples):
        ids[number, : len(one.ids)] = torch.tensor(one.ids)
        marks = torch.tensor(one.marks)
        weights[number, : len(one.ids)] = torch.where(marks, 1.0, prompt_weight)
        hidden[number, : len(one.ids)] = torch.tensor(one.late)
    weights[:, 0] = 0.0
    misrouted = [one.is_misrouted for one in examples]
    return Batch(
        ids=ids,
        weights=weights,
        num_tokens=sum(len(one.ids) for one in examples),
        pictures=tuple(picture for one in examples for picture in one.pictures),
        families=tuple(one.family for one in examples),
        hidden=hidden if hidden.any() else None,
        # Every second conversation that hides nothing: it must do without selections of its own inside the blocks.
        confined=torch.tensor([number % 2 == 0 and not any(one.late) for number, one in enumerate(examples)]),
        tableless=torch.tensor([one.is_tableless for one in examples]),
        misrouted=torch.tensor(misrouted) if any(misrouted) else None,
    )


def _cut(examples: list[Example], batch_tokens: int, most: int = POOL_SAMPLES) -> list[list[Example]]:
    """Runs of examples, shortest first, whose padded size and number stay below the limits."""
    batches: list[list[Example]] = []
    for one in examples:
        count = len(batches[-1]) + 1 if batches else 0
        if 0 < count <= most and count * _padded(len(one.ids)) <= batch_tokens:
            batches[-1].append(one)
        else:
            batches.append([one])
    return batches


def _padded(length: int) -> int:
    return -(-length // LENGTH_STEP) * LENGTH_STEP
