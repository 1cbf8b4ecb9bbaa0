"""Which backend computes, chosen once at start and reported.

auto            cpu where its library can be built and loaded, else reference, with one warning that says why
cpu             compiled kernels of the highest level this CPU has
cpu:LEVEL       compiled kernels of a lower level: portable, avx2, avx512, avx512bf16 or amx
reference       plain torch
"""

import logging

from flash41.errors import KernelError, complaint
from flash41.kernels.cpu.backend import CpuKernels, load_cpu_kernels
from flash41.kernels.interface import Kernels
from flash41.kernels.reference.backend import ReferenceKernels

BACKENDS = ("auto", "reference", "cpu")
"""Names `select_kernels` accepts; a CPU level may follow `cpu` behind a colon."""

logger = logging.getLogger(__name__)


def select_kernels(backend: str = "auto") -> Kernels:
    """The kernels of the named backend.

    Raises KernelError for an unknown name or level, and, for `cpu`, when its library cannot be built.
    """
    name, _, level = backend.partition(":")
    if name not in BACKENDS or (level and name != "cpu") or backend.endswith(":"):
        raise KernelError(complaint("backend", backend, f"one of {', '.join(BACKENDS)}"))
    kernels: ReferenceKernels = ReferenceKernels()
    if name == "cpu":
        kernels = load_cpu_kernels(level or None)
    elif name == "auto":
        kernels = _fastest()
    logger.info("kernels: %s", report(kernels))
    return kernels


def report(kernels: Kernels) -> str:
    """Which backend computes which operation."""
    if not isinstance(kernels, CpuKernels):
        return f"every operation by the {kernels.name} backend"
    level, compiled, others = kernels.library.level.value, kernels.compiled(), kernels.uncompiled()
    rest = f"; by the reference backend: {', '.join(others)}" if others else ""
    return f"{', '.join(compiled)} by the cpu backend ({level}){rest}"


def _fastest() -> ReferenceKernels:
    try:
        return load_cpu_kernels(None)
    except KernelError as error:
        logger.warning("kernels: the reference backend computes, exactly and slowly (%s)", error)
        return ReferenceKernels()
