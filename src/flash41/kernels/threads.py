"""How many threads compute, and who has the cores meanwhile: a compiled backend's own threads, or torch's.

Behind every operation torch computes with several threads, those wait in a busy loop for a millisecond or more.  Beside
compiled kernels they would take the cores from the library's threads, which are pinned and wait for the next operation.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from flash41.kernels.cpu.backend import CpuKernels
from flash41.kernels.interface import Kernels

THREADED_HIDDEN_SIZE = 1024
"""Below this width one thread computes: waking a second one costs more than it brings, above all on a busy machine."""


def choose_threads(wished: int | None, hidden_size: int) -> None:
    """Gives this process that many threads; without a wish one for a narrow model, and as many as torch has otherwise.

    `hidden_size` is the width of the model's streams, in channels.
    """
    if wished is None and hidden_size < THREADED_HIDDEN_SIZE:
        wished = 1
    if wished is not None:
        torch.set_num_threads(wished)


@contextmanager
def threads_of(kernels: Kernels) -> Iterator[None]:
    """Inside, a compiled backend computes with as many threads as torch had, and torch with one; changes no bit.

    Other backends compute with torch's threads, which stay as they are.
    """
    if not isinstance(kernels, CpuKernels) or kernels.library.threads is not None:
        yield
        return
    library, threads = kernels.library, torch.get_num_threads()
    library.threads = threads
    torch.set_num_threads(1)
    try:
        yield
    finally:
        library.threads = None
        torch.set_num_threads(threads)
