"""How many answers may be open at once, and when to come back otherwise."""

import contextlib
import math
import time
from collections.abc import Iterator

from flash41.server.api_errors import ApiError

LONGEST_RETRY_SECONDS = 60
MEMORY = 0.9
"""Weight of the past in the mean time of an answer."""


class Gate:
    """Counts open answers: at most as many as the engine computes side by side, and a queue.

    The sum that must hold: entered - left = open, which is 0 when nothing is going on.
    """

    def __init__(self, max_running: int, max_waiting: int) -> None:
        self._max_running = max_running
        self._max_open = max_running + max_waiting
        self._num_open = 0
        self._mean_seconds = 1.0
        self.num_refused = 0
        self.is_closed = False

    @property
    def num_open(self) -> int:
        """Answers that are computed or wait."""
        return self._num_open

    def close(self) -> None:
        """Lets nobody in any more; those inside finish."""
        self.is_closed = True

    @contextlib.contextmanager
    def entered(self, count: int) -> Iterator[None]:
        """Room for `count` answers while the context lasts; raises ApiError 429 or, when closed, 503."""
        if self.is_closed:
            raise ApiError(503, "the server is shutting down", retry_after_seconds=LONGEST_RETRY_SECONDS)
        if self._num_open + count > self._max_open:
            self.num_refused += 1
            message = f"{self._num_open} answers are open, at most {self._max_open} may be; try again later"
            raise ApiError(429, message, code="queue_full", retry_after_seconds=self.retry_after_seconds)
        self._num_open += count
        started = time.monotonic()
        try:
            yield
        finally:
            self._num_open -= count
            self._mean_seconds = MEMORY * self._mean_seconds + (1 - MEMORY) * (time.monotonic() - started)

    @property
    def retry_after_seconds(self) -> int:
        """When a place should be free: the queue's length in rounds of the engine."""
        rounds = self._num_open / self._max_running
        return max(1, min(LONGEST_RETRY_SECONDS, math.ceil(rounds * self._mean_seconds)))
