"""The routed experts of one layer: where each lies, which are kept in memory, what is asked for ahead.

    want([3, 7])      the forward will read these now     counted, asked for, the hottest moved into memory
    expect([2, 7])    the next forward of this layer probably reads these: asked for

An expert comes from its place in memory or from the mapping, with the same bytes.  Whoever holds tensors of an expert
asks again after `want` named it, because its place was taken.  Knows nothing of the model.
"""

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace

from torch import Tensor

from flash41.checkpoint.expert_counts import ExpertCounts
from flash41.checkpoint.hot_set import HotSet, Move
from flash41.checkpoint.presence import Presence
from flash41.checkpoint.read_ahead import Extent, ReadAhead, joined
from flash41.checkpoint.reader import MappedShards
from flash41.numerics.scaled import Quantized

MATRICES = ("w1", "w3", "w2")
"""Weights of an expert, in the order of their place in memory."""

LEAST_RIGHT = 0.5
"""Share of expected experts that must be chosen for expecting to go on."""
TRIAL = 48
"""Expected experts after which that is looked at."""
PAUSE = 256
"""Forwards without expectations before they are tried again."""
RECENT = 8
"""Forwards after a miss in which expecting is worth its while."""


class LayerExperts:
    """Experts below one prefix of a checkpoint."""

    def __init__(
        self,
        shards: MappedShards,
        prefix: str,
        places: Tensor,
        presence: Presence,
        ahead: ReadAhead,
    ) -> None:
        """`places` is uint8 [experts kept, bytes of one]."""
        self.counts = ExpertCounts(layer=prefix.removesuffix(".ffn.experts"))
        self._shards = shards
        self._prefix = prefix
        self._places = places
        self._hot = HotSet(len(places))
        self._presence = presence
        self._ahead = ahead
        self._expected: dict[int, list[Future[None]]] = {}
        self._extents: dict[int, list[Extent]] = {}
        self._ranges: dict[int, list[tuple[int, int]]] = {}
        self._trial = (0, 0)
        self._pause = 0
        self._recent = 0

    @property
    def expects(self) -> bool:
        """Whether a guess would be used: experts were missing of late, and guesses have been right often enough."""
        return self._recent > 0 and not self._pause

    def held(self, expert_id: int, mapped: Sequence[Quantized]) -> tuple[Quantized, ...] | None:
        """The expert's three weights in memory, shaped like the mapped ones; None if it has no place."""
        place = self._hot.place(expert_id)
        if place is None:
            return None
        memory, parts, end = self._places[place], [], 0
        for weight in mapped:
            begin, middle = end, end + weight.codes.nbytes
            end = middle + weight.scales.nbytes
            codes, scales = memory[begin:middle].view(weight.codes.shape), memory[middle:end].view(weight.scales.shape)
            parts.append(replace(weight, codes=codes, scales=scales))
        return tuple(parts)

    def want(self, chosen: Sequence[int]) -> list[int]:
        """Counts and asks for experts, each named once; returns those whose place changed."""
        counts, expected = self.counts, self._settle(chosen)
        missed = False
        for expert_id in chosen:
            missing = 0 if self._hot.place(expert_id) is not None else self._missing_bytes(expert_id)
            if missing and expert_id not in expected:
                missed = True
                counts.num_misses += 1
                counts.read_bytes += missing
                self._ask_for(expert_id)
            else:
                counts.num_hits += 1
        self._recent = RECENT if missed or expected else max(0, self._recent - 1)
        self._pause = max(0, self._pause - 1)
        moves = self._hot.visit(chosen)
        for move in moves:
            self._take(move)
        return [expert_id for move in moves for expert_id in (move.expert_id, move.evicted) if expert_id is not None]

    def expect(self, probable: Sequence[int]) -> None:
        """Asks for experts that the next `want` probably names."""
        for expert_id in probable:
            missing = 0 if self._hot.place(expert_id) is not None else self._missing_bytes(expert_id)
            if missing:
                self.counts.num_expected += 1
                self.counts.read_bytes += missing
                self._expected[expert_id] = self._ask_for(expert_id)

    def _settle(self, chosen: Sequence[int]) -> set[int]:
        """Which experts were expected; takes back what was so in vain, and stops expecting where it does not pay."""
        expected, self._expected = self._expected, {}
        right = sum(expert_id in chosen for expert_id in expected)
        self.counts.num_right += right
        for expert_id, requests in expected.items():
            if expert_id not in chosen:
                for request in requests:
                    request.cancel()
        seen, good = self._trial[0] + len(expected), self._trial[1] + right
        if seen >= TRIAL:
            self._pause = PAUSE if good < LEAST_RIGHT * seen else 0
            seen, good = 0, 0
        self._trial = (seen, good)
        return set(expected)

    def _take(self, move: Move) -> None:
        memory, end = self._places[move.place], 0
        for name in self._names(move.expert_id):
            begin, end = end, end + self._shards.extent(name).num_bytes
            self._shards.read_into(name, memory[begin:end])
        self.counts.num_moves += 1
        self.counts.num_hot += move.evicted is None

    def _names(self, expert_id: int) -> list[str]:
        return [f"{self._prefix}.{expert_id}.{matrix}.{part}" for matrix in MATRICES for part in ("weight", "scale")]

    def _ask_for(self, expert_id: int) -> list[Future[None]]:
        if expert_id not in self._extents:
            found = [self._shards.extent(name) for name in self._names(expert_id)]
            self._extents[expert_id] = joined(found)
        return self._ahead.request(self._extents[expert_id])

    def _missing_bytes(self, expert_id: int) -> int:
        if expert_id not in self._ranges:
            parts = [self._shards.tensor(name) for name in self._names(expert_id)]
            self._ranges[expert_id] = [(part.data_ptr(), part.nbytes) for part in parts]
        return sum(self._presence.missing_bytes(*part) for part in self._ranges[expert_id])
