"""Stop strings in raw text: where an answer ends, however the text is cut into tokens.

The string that is complete first ends the text, of two that are complete together the one that began first; the text
is cut before it.  So the same text ends at the same place whatever its tokens are.  A conversation's stop strings match
in content only, which is known to `flash41.chat.watching`.

spec: chat.md section 9 (at most 16).
"""

from collections.abc import Sequence

from flash41.chat.tokenizer import Tokenizer
from flash41.errors import RequestError, combined, complaint

LARGEST_NUM_STOPS = 16


def check_stop(stop: str | Sequence[str]) -> tuple[str, ...]:
    """The strings, of one or several; raises RequestError for more than 16 and for all that are no text or empty."""
    strings = (stop,) if isinstance(stop, str) else tuple(stop)
    faults = []
    if len(strings) > LARGEST_NUM_STOPS:
        faults.append(complaint("stop strings", len(strings), f"at most {LARGEST_NUM_STOPS}"))
    for number, string in enumerate(strings):
        if not isinstance(string, str) or not string:
            faults.append(complaint(f"stop[{number}]", string, "a text that is not empty"))
    if faults:
        raise RequestError(combined(faults))
    return strings


class TextWatcher:
    """Sees the ids of one raw answer and says when a stop string is complete."""

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str], eos_token_id: int | None) -> None:
        self._decoder = tokenizer.incremental()
        self._stop = tuple(stop)
        self._longest = max(map(len, self._stop), default=1)
        self._eos_token_id = eos_token_id
        self._text = ""
        self._num_taken = 0
        self._stopped = False
        self._finished = False

    @property
    def stopped(self) -> bool:
        """Whether a stop string ended the text."""
        return self._stopped

    def push(self, token_id: int) -> bool:
        """Takes the next id; true when the text now holds a stop string.  EOS, if there is one, is no text."""
        return False if token_id == self._eos_token_id else self._append(self._decoder.push(token_id))

    def finish(self) -> str:
        """The whole text, cut before the stop string."""
        self._append(self._decoder.flush())
        self._finished = True
        return self._text

    def take(self) -> str:
        """Text that is certain and was not taken before; what may become a stop string is held back until `finish`."""
        end = len(self._text) - (0 if self._stopped or self._finished else self._num_held())
        piece = self._text[self._num_taken : end]
        self._num_taken = max(self._num_taken, end)
        return piece

    def _num_held(self) -> int:
        """Characters at the end that a stop string begins with; the longest such beginning."""
        tail = self._text[-self._longest :]
        for length in range(min(len(tail), self._longest - 1), 0, -1):
            if any(stop.startswith(tail[-length:]) for stop in self._stop):
                return length
        return 0

    def _append(self, piece: str) -> bool:
        if self._stopped:
            return True
        begin = max(0, len(self._text) - self._longest + 1)  # an earlier match would have been seen earlier
        self._text += piece
        found = [(start + len(stop), start) for stop in self._stop if (start := self._text.find(stop, begin)) >= 0]
        if found:
            self._text, self._stopped = self._text[: min(found)[1]], True
        return self._stopped
