"""Asks the system for single rows of a mapped table before they are gathered, all of them at once.

A gather touches rows one after the other, and each that is not in memory costs a wait of its own; asked for together
they are on their way together.  A few rows tell whether it is worth while: where all of those are in memory, nothing is
asked.  Knows nothing of n-grams.
"""

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flash41.checkpoint.presence import Presence
from flash41.checkpoint.read_ahead import Extent, ReadAhead

SAMPLE = 32
"""Rows that are looked at."""
ROWS_PER_REQUEST = 64
"""Rows that one thread asks for in turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """A tensor of rows: where it lies in its file and in the mapping."""

    extent: Extent
    address: int
    row_bytes: int


class RowsAhead:
    """The rows of one table, whose parts have a row each per row."""

    def __init__(self, parts: Sequence[Rows], presence: Presence, ahead: ReadAhead) -> None:
        self._parts = parts
        self._presence = presence
        self._ahead = ahead
        self._pending: list[Future[None]] = []
        self.num_requested = 0
        """Rows asked for since the start."""

    def request(self, row_ids: NDArray[np.int64]) -> None:
        """Asks for rows [...], unless they seem to be in memory.

        What was asked for before and did not have its turn yet is forgotten: those rows have been gathered since.
        """
        distinct = np.unique(row_ids)
        if not len(distinct) or not self._missing(distinct):
            return
        for future in self._pending:
            future.cancel()
        self.num_requested += len(distinct)
        self._pending = []
        for part in self._parts:
            for first in range(0, len(distinct), ROWS_PER_REQUEST):
                some = distinct[first : first + ROWS_PER_REQUEST]
                self._pending += self._ahead.request_rows(part.extent, part.row_bytes, some)

    def _missing(self, row_ids: NDArray[np.int64]) -> bool:
        step = -(-len(row_ids) // SAMPLE)
        part = self._parts[0]
        return any(
            self._presence.missing_bytes(part.address + row_id * part.row_bytes, part.row_bytes)
            for row_id in row_ids[::step].tolist()
        )
