"""Feeds token ids to a loaded model, in whatever pieces and company a test wants."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from flash41.engine.load import LoadedModel
from flash41.engine.plan import PlannedImage, PlannedSpan, StepPlan
from flash41.model.batch import Probe

Pieces = Mapping[int, Sequence[int]]
"""Next token ids of each slot, in the order of the forward."""


class Feeder:
    """A runner that remembers which ids every slot was fed."""

    def __init__(self, model: LoadedModel, num_slots: int = 1, max_positions: int = 256) -> None:
        self.runner = model.runner(num_slots, max_positions)
        self.ids: dict[int, list[int]] = {slot: [] for slot in range(num_slots)}
        self.images: dict[int, tuple[PlannedImage, ...]] = {}
        """Images of each slot, known before they are fed."""
        self.rows: dict[bytes, Tensor] = {}
        """Encoded rows by identity."""
        self._look_back = model.config.engram.max_ngram - 1

    def feed(self, pieces: Pieces, probe: Probe | None = None, image_mask: Tensor | None = None) -> dict[int, Tensor]:
        """Logits FP32 [rows, vocab] of every slot's piece, of all its rows."""
        spans = tuple(self._span(slot, tuple(ids)) for slot, ids in pieces.items())
        staged = self.runner.stage(StepPlan(spans=spans), self.rows).all_logits()
        if image_mask is not None:
            staged = replace(staged, batch=replace(staged.batch, image_mask=image_mask))
        logits = self.runner.run(staged, probe).logits
        for slot, ids in pieces.items():
            self.ids[slot].extend(ids)
        return dict(zip(pieces, logits.split([len(ids) for ids in pieces.values()]), strict=True))

    def feed_chunks(self, ids: Sequence[int], lengths: Sequence[int], slot: int = 0) -> Tensor:
        """Logits of all rows of `ids`, fed to one slot in pieces of these lengths."""
        assert sum(lengths) == len(ids), (lengths, len(ids))
        parts, start = [], 0
        for length in lengths:
            parts.append(self.feed({slot: ids[start : start + length]})[slot])
            start += length
        return torch.cat(parts)

    def _span(self, slot: int, ids: tuple[int, ...]) -> PlannedSpan:
        seen = self.ids[slot]
        history = tuple(seen[-self._look_back :]) if seen and self._look_back else ()
        return PlannedSpan(
            request_id=slot,
            slot=slot,
            start=len(seen),
            ids=ids,
            history=history,
            samples=True,
            images=self.images.get(slot, ()),
        )


def one_shot(model: LoadedModel, ids: Sequence[int]) -> Tensor:
    """Logits of all rows of `ids` in a single forward."""
    return Feeder(model, 1, len(ids)).feed({0: ids})[0]


def greedy(model: LoadedModel, prompts: Sequence[Sequence[int]], num_tokens: int) -> tuple[list[list[int]], Tensor]:
    """Greedy tokens of all prompts run as one batch, and their logits FP32 [prompts, num_tokens, vocab]."""
    longest = max(len(prompt) for prompt in prompts) + num_tokens
    feeder = Feeder(model, len(prompts), longest)
    pieces: dict[int, Sequence[int]] = dict(enumerate(prompts))
    tokens: list[list[int]] = [[] for _ in prompts]
    steps = []
    for _ in range(num_tokens):
        logits = feeder.feed(pieces)
        steps.append(torch.stack([logits[slot][-1] for slot in pieces]))
        chosen: list[int] = steps[-1].argmax(-1).tolist()
        for text, token in zip(tokens, chosen, strict=True):
            text.append(token)
        pieces = {slot: [token] for slot, token in enumerate(chosen)}
    return tokens, torch.stack(steps, 1)
