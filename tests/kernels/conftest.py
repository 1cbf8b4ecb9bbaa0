"""Every kernel test runs over every backend and CPU level of this machine: a new one is a name in helpers.backends."""

import pytest

from flash41.kernels.cpu.level import Level, cpu_flags, present_levels
from flash41.kernels.interface import Kernels
from helpers.backends import EVERY_BACKEND, kernels_or_skip, those_here

PRODUCTS = ("test_linear.py", "test_expert.py")
HALVES = {f"cpu:{level.value}": level for level in (Level.AVX512BF16, Level.AMX)}
"""In all but products they are avx512, and emulation is slow."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "kernels" in metafunc.fixturenames:
        present = present_levels(cpu_flags())
        emulated = {name for name, level in HALVES.items() if level not in present}
        left_out = emulated if metafunc.definition.path.name not in PRODUCTS else ()
        names = [name for name in those_here(EVERY_BACKEND) if name not in left_out]
        metafunc.parametrize("kernels", names, indirect=True)


@pytest.fixture
def kernels(request: pytest.FixtureRequest) -> Kernels:
    return kernels_or_skip(request.param)
