"""Weights that every step reads, asked for while what comes before them is computed.

Which ones is certain, so there is nothing to guess; a few of their pages tell whether any are missing at all.
"""

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace

from flash41.checkpoint.presence import Presence
from flash41.checkpoint.read_ahead import Extent, ReadAhead, joined

SAMPLE = 32
"""Places that are looked at."""
PART_BYTES = 16 << 20
"""Bytes that one thread asks for in turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A tensor: where it lies in its file and in the mapping."""

    extent: Extent
    address: int


class DenseAhead:
    """The dense weights of one layer, or the head."""

    def __init__(self, tensors: Sequence[Stored], presence: Presence, ahead: ReadAhead) -> None:
        self._places = _spread(tensors)
        self._parts = [part for extent in joined([one.extent for one in tensors]) for part in _parts(extent)]
        self._presence = presence
        self._ahead = ahead
        self._pending: list[Future[None]] = []
        self.num_requests = 0
        """Times that something was missing."""

    def request(self) -> None:
        """Asks for all of them if one of the places looked at is missing, and nothing is on its way."""
        if not all(future.done() for future in self._pending):
            return
        if any(self._presence.missing_bytes(address, 1) for address in self._places):
            self.num_requests += 1
            self._pending = self._ahead.request(self._parts)


def _parts(extent: Extent) -> list[Extent]:
    end = extent.begin + extent.num_bytes
    return [
        replace(extent, begin=begin, num_bytes=min(PART_BYTES, end - begin))
        for begin in range(extent.begin, end, PART_BYTES)
    ]


def _spread(tensors: Sequence[Stored]) -> list[int]:
    """Addresses at equal distances through all tensors, laid end to end."""
    total = sum(one.extent.num_bytes for one in tensors)
    step, places, passed = max(1, -(-total // SAMPLE)), list[int](), 0
    for one in tensors:
        first = -passed % step
        places += range(one.address + first, one.address + one.extent.num_bytes, step)
        passed += one.extent.num_bytes
    return places
