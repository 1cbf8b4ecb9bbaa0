import logging
from pathlib import Path

import pytest
import torch
from torch import Tensor

from flash41.errors import KernelError
from flash41.kernels.cpu import backend
from flash41.kernels.cpu.backend import CpuKernels, load_cpu_kernels
from flash41.kernels.cpu.check import check_products
from flash41.kernels.cpu.level import CPU_FLAGS, Level
from flash41.kernels.cpu.library import Library
from flash41.kernels.reference.backend import ReferenceKernels
from flash41.numerics.scaled import Quantized
from helpers.backends import kernels_or_skip

HIGHEST = [level.value for level in Level][::-1]


@pytest.fixture
def failing_builds(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A CPU of every level and a compiler that fails for each; the levels it was asked for."""
    kernels_or_skip("cpu")
    asked: list[str] = []

    def fail(level: Level) -> Path:
        asked.append(level.value)
        raise KernelError(f"no {level.value}")

    monkeypatch.setattr(backend, "built_library", fail)
    monkeypatch.setattr(backend, "cpu_flags", lambda: CPU_FLAGS[Level.AMX])
    return asked


def test_levels_are_tried_from_the_highest_and_those_passed_over_are_named(
    failing_builds: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING), pytest.raises(KernelError, match="no portable"):
        load_cpu_kernels(None)
    assert failing_builds == HIGHEST
    assert [record.getMessage() for record in caplog.records] == [
        f"kernels: CPU level {level} is passed over (no {level})" for level in HIGHEST[:-1]
    ]


def test_a_level_that_was_asked_for_is_not_replaced_by_another(failing_builds: list[str]) -> None:
    with pytest.raises(KernelError, match="no avx2"):
        load_cpu_kernels("avx2")
    assert failing_builds == ["avx2"]


@pytest.mark.parametrize("content", [b"", b"no library"])
def test_a_file_that_is_no_library_is_an_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "library.so").write_bytes(content)
    with pytest.raises(KernelError, match=r"compiled kernels: got 'library.so', expected a library that loads"):
        Library(tmp_path / "library.so", Level.PORTABLE)


class Inexact(ReferenceKernels):
    """Products that lose a few bits."""

    def __init__(self) -> None:
        super().__init__()
        exact = self.scaled_linear
        self.scaled_linear = lambda x, weight: exact(x, weight) * (1 + 2.0**-12)  # type: ignore[assignment]


class Dependent(ReferenceKernels):
    """Products whose last bit depends on the number of rows."""

    def __init__(self) -> None:
        super().__init__()
        exact = self.scaled_linear

        def product(x: Tensor, weight: Quantized) -> Tensor:
            return exact(x, weight) * (1 + 2.0**-23 * (len(x) > 1))

        self.scaled_linear = product  # type: ignore[assignment]


def test_the_reference_passes_the_check_of_products_and_lost_bits_do_not() -> None:
    check_products(ReferenceKernels())
    with pytest.raises(KernelError, match="compiled products of e4m3 weights: got 'other numbers'"):
        check_products(Inexact())
    with pytest.raises(KernelError, match="rows that do not depend on their neighbours"):
        check_products(Dependent())


def test_other_dtypes_are_left_to_the_reference() -> None:
    kernels = kernels_or_skip("cpu")
    assert isinstance(kernels, CpuKernels)
    x, weight = torch.arange(64.0, dtype=torch.float64).view(2, 32), torch.ones(32)
    assert torch.equal(kernels.rms_norm(x, weight, 1e-6), ReferenceKernels().rms_norm(x, weight, 1e-6))
    assert torch.equal(
        kernels.linear(x, torch.ones(3, 32), torch.float32), torch.linspace(496, 1520, 2).view(2, 1).repeat(1, 3)
    )
