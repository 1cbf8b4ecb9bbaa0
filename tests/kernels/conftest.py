"""Every kernel test runs over every backend: a new backend is one more name in `select.BACKENDS`."""

import pytest

from flash41.kernels.interface import Kernels
from flash41.kernels.select import BACKENDS, select_kernels


@pytest.fixture(params=[name for name in BACKENDS if name != "auto"])
def kernels(request: pytest.FixtureRequest) -> Kernels:
    return select_kernels(request.param)
