import logging
from pathlib import Path

import pytest

from flash41.errors import KernelError
from flash41.kernels.cpu.backend import CpuKernels
from flash41.kernels.cpu.level import Level, cpu_flags, present_levels
from flash41.kernels.interface import Kernels
from flash41.kernels.reference.backend import ReferenceKernels
from flash41.kernels.select import report, select_kernels
from helpers.backends import EVERY_BACKEND, kernels_or_skip


def operations() -> list[str]:
    return [name for name in vars(Kernels) if not name.startswith("_") and callable(getattr(Kernels, name))]


@pytest.mark.parametrize("backend", EVERY_BACKEND)
def test_every_backend_computes_every_operation(backend: str) -> None:
    kernels = kernels_or_skip(backend)
    assert len(operations()) > 15
    assert [name for name in operations() if not callable(getattr(kernels, name, None))] == []


@pytest.mark.parametrize("backend", ["auto", *EVERY_BACKEND])
def test_the_choice_is_logged_once(backend: str, caplog: pytest.LogCaptureFixture) -> None:
    kernels_or_skip("cpu" if backend == "auto" else backend)
    level = backend.partition(":")[2]
    if level and Level(level) not in present_levels(cpu_flags()):
        pytest.skip(f"this CPU has no {level}")
    caplog.clear()
    with caplog.at_level(logging.INFO, logger="flash41.kernels.select"):
        kernels = select_kernels(backend)
    assert [record.getMessage() for record in caplog.records] == [f"kernels: {report(kernels)}"]


def test_the_report_names_each_operation_once_with_who_computes_it() -> None:
    assert report(ReferenceKernels()) == "every operation by the reference backend"
    kernels = kernels_or_skip("cpu:portable")
    assert isinstance(kernels, CpuKernels)
    compiled, left = kernels.compiled(), kernels.uncompiled()
    assert sorted(compiled + left) == sorted(operations())
    text = report(kernels)
    assert "by the cpu backend (portable)" in text
    for name in compiled:
        assert text.index(name) < text.index("by the cpu backend")
    for name in left:
        assert text.index(name) > text.index("by the reference backend")


def test_automatic_choice_is_the_compiled_backend_where_it_builds() -> None:
    kernels_or_skip("cpu")
    assert select_kernels().name == "cpu"


def test_without_a_compiler_the_reference_computes_and_says_so_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with caplog.at_level(logging.WARNING, logger="flash41.kernels"):
        kernels = select_kernels("auto")
    assert kernels.name == "reference"
    (warning,) = [record.getMessage() for record in caplog.records]
    assert "the reference backend computes" in warning
    assert "C++ compiler: got 'none'" in warning
    with pytest.raises(KernelError, match=r"C\+\+ compiler"):
        select_kernels("cpu")


@pytest.mark.parametrize("name", ["cuda", "reference:avx2", "auto:portable", "cpu:", ""])
def test_an_unknown_backend_is_refused_with_the_known_ones(name: str) -> None:
    with pytest.raises(KernelError, match=f"backend: got {name!r}, expected one of auto, reference, cpu"):
        select_kernels(name)


def test_an_unknown_level_is_refused_with_those_of_this_cpu() -> None:
    with pytest.raises(KernelError, match="CPU level: got 'mmx', expected one of portable"):
        select_kernels("cpu:mmx")


def test_backends_share_no_state() -> None:
    assert select_kernels("reference") is not select_kernels("reference")
