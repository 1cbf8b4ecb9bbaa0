import logging

import pytest

from flash41.errors import KernelError
from flash41.kernels.interface import Kernels
from flash41.kernels.select import BACKENDS, select_kernels


def operations() -> list[str]:
    return [name for name in vars(Kernels) if not name.startswith("_") and callable(getattr(Kernels, name))]


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_backend_computes_every_operation(backend: str) -> None:
    kernels = select_kernels(backend)
    assert len(operations()) > 15
    assert [name for name in operations() if not callable(getattr(kernels, name, None))] == []


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_choice_is_logged_once(backend: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="flash41.kernels.select"):
        kernels = select_kernels(backend)
    assert [record.getMessage() for record in caplog.records] == [
        f"kernels: every operation by the {kernels.name} backend"
    ]


def test_an_unknown_backend_is_refused_with_the_known_ones() -> None:
    with pytest.raises(KernelError, match="backend: got 'cuda', expected one of auto, reference"):
        select_kernels("cuda")


def test_backends_share_no_state() -> None:
    assert select_kernels("reference") is not select_kernels("reference")
