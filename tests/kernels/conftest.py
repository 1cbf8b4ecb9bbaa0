"""Every kernel test runs over every backend and CPU level: a new one is one more name in `helpers.backends`."""

import pytest

from flash41.kernels.cpu.level import Level, cpu_flags, present_levels
from flash41.kernels.interface import Kernels
from helpers.backends import EVERY_BACKEND, kernels_or_skip

PRODUCTS = ("test_linear.py", "test_expert.py")
HALVES = {f"cpu:{level.value}": level for level in (Level.AVX512BF16, Level.AMX)}


@pytest.fixture(params=EVERY_BACKEND)
def kernels(request: pytest.FixtureRequest) -> Kernels:
    level = HALVES.get(request.param)
    if level and level not in present_levels(cpu_flags()) and request.path.name not in PRODUCTS:
        pytest.skip(f"in all but products {level.value} is avx512, and emulation is slow")
    return kernels_or_skip(request.param)
