"""Garbage collection out of the way while a release is opened.

Opening makes several hundred thousand small records that all stay.  A collector that looks through them again and again
finds nothing and takes a third of the time.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_paused() -> Iterator[None]:
    """Automatic garbage collection off inside, and afterwards as it was before."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
