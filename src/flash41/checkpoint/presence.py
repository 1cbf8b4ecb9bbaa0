"""How much of a mapped range is not in memory, as the system's page cache tells it.

Where the system cannot be asked, everything counts as present: then nothing is read ahead, and nothing is wrong.
"""

import ctypes
import mmap
from collections.abc import Callable
from contextlib import suppress

import numpy as np


class Presence:
    """Asks the system; one per checkpoint."""

    def __init__(self) -> None:
        self._ask: Callable[[int, int, int], int] | None = None
        with suppress(OSError, AttributeError):
            function = ctypes.CDLL(None, use_errno=True).mincore
            function.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
            self._ask = function

    def missing_bytes(self, address: int, num_bytes: int) -> int:
        """Bytes of pages of a mapped range that a reader would have to wait for."""
        if self._ask is None or num_bytes == 0:
            return 0
        page = mmap.PAGESIZE
        first = address // page * page
        num_pages = -(-(address + num_bytes - first) // page)
        found = np.empty(num_pages, dtype=np.uint8)
        if self._ask(first, num_pages * page, found.ctypes.data):
            return 0
        return int(num_pages - np.count_nonzero(found & 1)) * page
