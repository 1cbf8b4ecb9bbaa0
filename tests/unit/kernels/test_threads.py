"""How many threads compute, and who has the cores while a step is computed."""

from collections.abc import Iterator

import pytest
import torch

from flash41.kernels.cpu.backend import CpuKernels
from flash41.kernels.reference.backend import ReferenceKernels
from flash41.kernels.threads import THREADED_HIDDEN_SIZE, choose_threads, threads_of
from helpers.backends import kernels_or_skip
from helpers.tensors import dense_weight, normal


@pytest.fixture(autouse=True)
def three_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def compiled() -> CpuKernels:
    kernels = kernels_or_skip("cpu")
    assert isinstance(kernels, CpuKernels)
    return kernels


def test_a_compiled_backend_takes_the_threads_of_torch_for_a_while() -> None:
    kernels = compiled()
    x, weight = normal(5, 1024), dense_weight(128, 1024)
    expected = kernels.scaled_linear(x, weight)
    with threads_of(kernels):
        assert (kernels.library.threads, torch.get_num_threads()) == (3, 1)
        with threads_of(kernels):
            assert (kernels.library.threads, torch.get_num_threads()) == (3, 1)
        assert (kernels.library.threads, torch.get_num_threads()) == (3, 1)
        assert torch.equal(kernels.scaled_linear(x, weight), expected)
    assert (kernels.library.threads, torch.get_num_threads()) == (None, 3)


def test_threads_come_back_when_a_step_breaks_off() -> None:
    kernels = compiled()
    with pytest.raises(ZeroDivisionError), threads_of(kernels):
        _ = 1 // 0
    assert (kernels.library.threads, torch.get_num_threads()) == (None, 3)


def test_the_reference_backend_computes_with_the_threads_of_torch() -> None:
    with threads_of(ReferenceKernels()):
        assert torch.get_num_threads() == 3


@pytest.mark.parametrize(
    ("wished", "hidden_size", "expected"),
    [
        (None, THREADED_HIDDEN_SIZE - 1, 1),
        (None, THREADED_HIDDEN_SIZE, 3),
        (2, THREADED_HIDDEN_SIZE - 1, 2),
        (2, THREADED_HIDDEN_SIZE, 2),
    ],
)
def test_a_narrow_model_computes_with_one_thread_unless_told_otherwise(
    wished: int | None, hidden_size: int, expected: int
) -> None:
    choose_threads(wished, hidden_size)
    assert torch.get_num_threads() == expected
