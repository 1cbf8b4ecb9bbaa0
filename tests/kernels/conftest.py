"""Every kernel test runs over every backend and CPU level: a new one is one more name in `helpers.backends`."""

import pytest

from flash41.kernels.interface import Kernels
from helpers.backends import EVERY_BACKEND, kernels_or_skip


@pytest.fixture(params=EVERY_BACKEND)
def kernels(request: pytest.FixtureRequest) -> Kernels:
    return kernels_or_skip(request.param)
