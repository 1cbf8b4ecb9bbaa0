"""Which backend computes, chosen once at start and reported."""

import logging

from flash41.errors import KernelError, complaint
from flash41.kernels.interface import Kernels
from flash41.kernels.reference.backend import ReferenceKernels

BACKENDS = ("auto", "reference")
"""Names `select_kernels` accepts; `auto` is the fastest one that is present."""

logger = logging.getLogger(__name__)


def select_kernels(backend: str = "auto") -> Kernels:
    """The kernels of the named backend; raises KernelError for an unknown name."""
    if backend not in BACKENDS:
        raise KernelError(complaint("backend", backend, f"one of {', '.join(BACKENDS)}"))
    kernels = ReferenceKernels()
    logger.info("kernels: every operation by the %s backend", kernels.name)
    return kernels
