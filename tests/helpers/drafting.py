"""Drafts and verifies by hand: what an engine does with a drafter, one request at a time and at temperature 0."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from flash41.engine.load import LoadedModel
from flash41.engine.speculative import Verdict, equality
from flash41.model.batch import Probe
from flash41.model.draft_heads import Choice, Drafts, most_likely
from helpers.feeding import Feeder


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One verify step."""

    anchor_position: int
    drafts: list[int]
    target: list[int]
    """The target's token of every row."""
    verdict: Verdict
    logits: Tensor
    """FP32 [rows, vocab]."""


class DraftingFeeder(Feeder):
    """A feeder whose slots have rings for the draft stages and can take rows back."""

    def __init__(self, model: LoadedModel, num_slots: int = 1, max_positions: int = 256) -> None:
        super().__init__(model, num_slots, max_positions)
        self.runner = model.runner(num_slots, max_positions, drafts=True)

    def draft(
        self, anchors: Mapping[int, int], choose: Choice = most_likely, probe: Probe | None = None
    ) -> dict[int, Drafts]:
        """The drafts of every slot, each as a batch of one."""
        found = self.runner.draft(anchors, choose, probe)
        return {
            slot: Drafts(
                ids=found.ids[row : row + 1],
                base_logits=found.base_logits[row : row + 1],
                logits=found.logits[row : row + 1],
                confidence=found.confidence[row : row + 1],
            )
            for row, slot in enumerate(anchors)
        }

    def rewind(self, slot: int, position: int) -> None:
        """Takes back the rows from `position` on."""
        self.runner.store.rewind(slot, position)
        del self.ids[slot][position:]

    def verify(self, rows: Mapping[int, Sequence[int]]) -> dict[int, Turn]:
        """One verify step at temperature 0, committed; `rows` are the anchor and the drafts of each slot."""
        turns = {}
        for slot, logits in self.feed(rows).items():
            position, drafts = len(self.ids[slot]) - len(rows[slot]), list(rows[slot][1:])
            target: list[int] = logits.argmax(-1).tolist()
            verdict = equality(drafts, target)
            self.rewind(slot, position + len(verdict.tokens))
            turns[slot] = Turn(anchor_position=position, drafts=drafts, target=target, verdict=verdict, logits=logits)
        return turns


def speculative(model: LoadedModel, ids: Sequence[int], num_tokens: int) -> tuple[list[int], list[Turn]]:
    """`num_tokens` tokens behind a prompt at temperature 0, drafted and verified."""
    feeder = DraftingFeeder(model, 1, len(ids) + num_tokens + 8)
    anchor = int(feeder.feed({0: ids})[0][-1].argmax())
    tokens, turns = [anchor], []
    while len(tokens) < num_tokens:
        drafts: list[int] = feeder.draft({0: anchor})[0].ids[0].tolist()
        turns.append(feeder.verify({0: [anchor, *drafts]})[0])
        tokens += turns[-1].verdict.tokens
        anchor = tokens[-1]
    return tokens[:num_tokens], turns
