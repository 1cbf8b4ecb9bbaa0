"""Backends under test: the reference, and the compiled one at every CPU level this machine has."""

import functools
import os

import pytest

from flash41.errors import KernelError
from flash41.kernels.cpu.build import find_compiler
from flash41.kernels.cpu.level import Level, cpu_flags, present_levels
from flash41.kernels.interface import Kernels
from flash41.kernels.reference.backend import ReferenceKernels
from flash41.kernels.select import select_kernels

REFERENCE = "reference"
COMPILED = tuple(f"cpu:{level.value}" for level in Level)
EVERY_BACKEND = (REFERENCE, *COMPILED)
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
    if level and Level(level) not in present_levels(cpu_flags()):
        pytest.skip(f"this CPU has no {level}")
    return _compiled(name)


@functools.cache
def _compiled(name: str) -> Kernels:
    return select_kernels(name)
