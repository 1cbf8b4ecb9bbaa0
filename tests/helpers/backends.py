"""Backends under test: the reference, and the compiled one at every CPU level.

A level this machine does not have is emulated where it has AVX2, else skipped.
"""

import functools
import os
from collections.abc import Sequence

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
    if reason := why_not(name):
        pytest.skip(reason)
    if name == REFERENCE:
        return ReferenceKernels()
    level = name.partition(":")[2]
    return _compiled(name) if not level or Level(level) in present_levels(cpu_flags()) else _emulated(Level(level))


def why_not(name: str) -> str | None:
    """Why no test here runs a backend, if that is so."""
    if name == REFERENCE:
        return None
    if fault := compiler_fault():
        return fault
    level = name.partition(":")[2]
    present = present_levels(cpu_flags())
    if not level or Level(level) in present:
        return None
    if Level.AVX2 not in present:
        return f"this CPU has neither {level} nor AVX2 to emulate it"
    if Level(level) is not Level.AMX and os.environ.get(EMULATE) != "all":
        # The unit of AMX holds the FP32 loops of the others too; each emulated unit takes its time to build.
        return f"this CPU lacks {level}, which scripts/nightly emulates"
    return None


def those_here(names: Sequence[str]) -> list[str]:
    """Backends among these that tests can run here.

    A thousand tests of the others would be skipped one by one; tests/unit/kernels/test_select.py skips each once, with
    its reason.
    """
    return [name for name in names if not why_not(name)]


@functools.cache
def compiler_fault() -> str | None:
    """Why nothing can be compiled here; asked once, for every question is a process."""
    try:
        find_compiler(dict(os.environ))
    except KernelError as error:
        return str(error)
    return None


@functools.cache
def _compiled(name: str) -> Kernels:
    return select_kernels(name)


@functools.cache
def _emulated(level: Level) -> Kernels:
    return emulated_kernels(level)
