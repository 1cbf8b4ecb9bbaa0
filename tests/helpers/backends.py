"""Backends under test: the reference, and the compiled one at every CPU level.

A level this machine does not have is emulated where it has AVX2, else skipped.
"""

import functools
import os

import pytest

from flash41.errors import KernelError
from flash41.kernels.cpu.build import find_compiler
from flash41.kernels.cpu.level import Level, cpu_flags, present_levels
from flash41.kernels.interface import Kernels
from flash41.kernels.reference.backend import ReferenceKernels
from flash41.kernels.select import select_kernels
from helpers.emulated import emulated_kernels

REFERENCE = "reference"
COMPILED = tuple(f"cpu:{level.value}" for level in Level)
EVERY_BACKEND = (REFERENCE, *COMPILED)
EMULATE = "FLASH41_EMULATE"
"""`all` emulates every level that the CPU lacks; otherwise the highest is."""
BOTH_BACKENDS = (REFERENCE, "cpu")


def kernels_or_skip(name: str) -> Kernels:
    """The kernels of a backend; skips the test where this machine cannot build or run them."""
    if name == REFERENCE:
        return ReferenceKernels()
    try:
        find_compiler(dict(os.environ))
    except KernelError as error:
        pytest.skip(str(error))
    level = name.partition(":")[2]
    present = present_levels(cpu_flags())
    if not level or Level(level) in present:
        return _compiled(name)
    if Level.AVX2 not in present:
        pytest.skip(f"this CPU has neither {level} nor AVX2 to emulate it")
    if Level(level) is not Level.AMX and os.environ.get(EMULATE) != "all":
        # The unit of AMX holds the FP32 loops of the others too; each emulated unit takes its time to build.
        pytest.skip(f"this CPU lacks {level}, which scripts/nightly emulates")
    return _emulated(Level(level))


@functools.cache
def _compiled(name: str) -> Kernels:
    return select_kernels(name)


@functools.cache
def _emulated(level: Level) -> Kernels:
    return emulated_kernels(level)
