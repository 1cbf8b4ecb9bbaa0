"""Which experts of one layer are kept in memory: those chosen most often, of late more than long ago.

    score(e)  <-  DECAY * score(e) + (1 if e was chosen)        once per forward

A chosen expert takes a free place; without one it takes the place of the expert with the smallest score, if that is
smaller than its own by MARGIN.  Nobody who was chosen in the same forward gives way.  The margin keeps two experts of
like frequency from taking turns, each of which would read a whole expert.

Knows nothing of files and tensors.
"""

from collections.abc import Sequence
from dataclasses import dataclass

DECAY = 0.99
"""Per forward: a choice counts half after 69."""
MARGIN = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """An expert that takes a place."""

    expert_id: int
    place: int
    evicted: int | None
    """Who had it."""


class HotSet:
    """Places of one layer, and who has them."""

    def __init__(self, num_places: int) -> None:
        self._free = list(range(num_places))[::-1]
        self._place: dict[int, int] = {}
        self._scores: dict[int, float] = {}
        self._unit = 1.0
        """What a choice counts now: it grows, so that nobody's score has to be multiplied."""

    def place(self, expert_id: int) -> int | None:
        """Where an expert is kept."""
        return self._place.get(expert_id)

    def visit(self, chosen: Sequence[int]) -> list[Move]:
        """Counts the experts chosen by a forward, each named once; returns who takes a place, the hottest first."""
        self._unit /= DECAY
        if self._unit > 1e200:
            self._scores = {expert_id: score / self._unit for expert_id, score in self._scores.items()}
            self._unit = 1.0
        for expert_id in chosen:
            self._scores[expert_id] = self._scores.get(expert_id, 0.0) + self._unit
        outside = [expert_id for expert_id in chosen if expert_id not in self._place]
        outside.sort(key=lambda expert_id: (-self._scores[expert_id], expert_id))
        moves: list[Move] = []
        for expert_id in outside:
            move = self._move(expert_id, chosen)
            if move is None:
                break
            moves.append(move)
        return moves

    def _move(self, expert_id: int, chosen: Sequence[int]) -> Move | None:
        evicted = None
        if not self._free:
            resting = [held for held in self._place if held not in chosen]
            if not resting:
                return None
            evicted = min(resting, key=lambda held: (self._scores[held], held))
            if self._scores[evicted] + MARGIN * self._unit > self._scores[expert_id]:
                return None
            self._free.append(self._place.pop(evicted))
        self._place[expert_id] = self._free.pop()
        return Move(expert_id=expert_id, place=self._place[expert_id], evicted=evicted)
