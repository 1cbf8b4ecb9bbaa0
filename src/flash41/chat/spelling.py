"""What tokens write, and which of them would complete a marker.

A reader of text cannot tell a control token from the same letters in base tokens.  Where a marker is to mean something
only as the control token, every base token that would finish spelling it is blocked:

    marker </think>, text so far ...</th   ->  tokens that begin with "ink>" are blocked
    marker </think>, text so far ...       ->  tokens that hold all of it are blocked

Bytes, not characters: a token may end inside a character.
"""

from bisect import bisect_left
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from flash41.chat.tokenizer import Tokenizer

Mask = NDArray[np.bool_]


class Spellings:
    """Bytes of every token of one vocabulary, in order of id and in order of spelling."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.of_token = tokenizer.all_token_bytes()
        self.control_ids = tokenizer.control_ids
        base = [
            (written, token_id) for token_id, written in enumerate(self.of_token) if token_id not in self.control_ids
        ]
        base.sort()
        self._sorted = [written for written, _ in base]
        self._sorted_ids = np.array([token_id for _, token_id in base], dtype=np.int64)
        self._holding: dict[bytes, NDArray[np.int64]] = {}

    def beginning(self, start: bytes) -> NDArray[np.int64]:
        """Base tokens that begin with these bytes, of which the last one is no 0xFF."""
        after = start[:-1] + bytes([start[-1] + 1])
        return self._sorted_ids[bisect_left(self._sorted, start) : bisect_left(self._sorted, after)]

    def holding(self, marker: bytes) -> NDArray[np.int64]:
        """Base tokens that hold all of a marker; looked for once."""
        if marker not in self._holding:
            found = [number for number, written in enumerate(self._sorted) if marker in written]
            self._holding[marker] = self._sorted_ids[found]
        return self._holding[marker]


class MarkerGuard:
    """Follows one text and blocks base tokens that would complete a marker in it."""

    def __init__(self, spellings: Spellings, markers: Sequence[str], text: str = "") -> None:
        self._spellings = spellings
        self._markers = tuple(marker.encode() for marker in markers)
        self._always = [spellings.holding(marker) for marker in self._markers]
        self._kept = max(map(len, self._markers), default=1)
        self._tail = text.encode()[-self._kept :]

    def ends_with(self, text: bytes) -> bool:
        """Whether the text so far ends with these bytes, which are no longer than the longest marker."""
        return self._tail.endswith(text)

    def push(self, token_id: int) -> None:
        """Takes the next token."""
        self._tail = (self._tail + self._spellings.of_token[token_id])[-self._kept :]

    def block(self, mask: Mask) -> None:
        """Clears every token of Bool [vocab] that would complete a marker."""
        for marker, always in zip(self._markers, self._always, strict=True):
            mask[always] = False
            for length in range(1, len(marker)):
                if self._tail.endswith(marker[:length]):
                    mask[self._spellings.beginning(marker[length:])] = False
