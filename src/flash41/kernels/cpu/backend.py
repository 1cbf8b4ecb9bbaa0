"""The compiled backend: operations of the library where it has them, those of the reference elsewhere."""

import logging

from flash41.errors import KernelError
from flash41.kernels.cpu.build import built_library, find_compiler
from flash41.kernels.cpu.check import check_products
from flash41.kernels.cpu.level import Level, choose_level, cpu_flags, present_levels
from flash41.kernels.cpu.library import Library
from flash41.kernels.cpu.lists import ListOperations
from flash41.kernels.cpu.products import Products
from flash41.kernels.cpu.rows import RowOperations
from flash41.kernels.interface import Kernels
from flash41.kernels.reference.backend import ReferenceKernels

logger = logging.getLogger(__name__)

OPERATIONS = tuple(name for name, value in vars(Kernels).items() if not name.startswith("_") and callable(value))
"""Everything a backend computes."""

ROOMS = (Products, RowOperations, ListOperations)
"""Where the compiled operations are, under their names in `Kernels`."""


class CpuKernels(ReferenceKernels):
    """Compiled kernels of one CPU level; what no room below has is the reference operation."""

    name = "cpu"

    def __init__(self, library: Library) -> None:
        super().__init__()
        self.library = library
        self.reads_bands = library.level.reads_bands
        reference = ReferenceKernels()
        for room in ROOMS:
            made = room(library, reference)
            for operation in OPERATIONS:
                if hasattr(room, operation):
                    setattr(self, operation, getattr(made, operation))

    def compiled(self) -> list[str]:
        """Names of the operations the library computes."""
        return [name for name in OPERATIONS if any(hasattr(room, name) for room in ROOMS)]

    def uncompiled(self) -> list[str]:
        """Names of the operations left to the reference."""
        compiled = set(self.compiled())
        return [name for name in OPERATIONS if name not in compiled]


def load_cpu_kernels(level: str | None) -> CpuKernels:
    """Kernels of a CPU level; without one of the highest whose library builds, loads and multiplies rightly.

    Builds the library if need be.  Raises KernelError for a level this CPU does not have, and when no library is left;
    a level that had to be passed over is a warning.
    """
    find_compiler()
    flags = cpu_flags()
    *others, last = [choose_level(level, flags)] if level else present_levels(flags)[::-1]
    for chosen in others:
        try:
            return _kernels(chosen)
        except KernelError as error:
            logger.warning("kernels: CPU level %s is passed over (%s)", chosen.value, error)
    return _kernels(last)


def _kernels(level: Level) -> CpuKernels:
    kernels = CpuKernels(Library(built_library(level), level))
    check_products(kernels)
    return kernels
