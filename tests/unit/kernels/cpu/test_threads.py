"""The library's threads: callers side by side, and a process that forks."""

import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from helpers.backends import kernels_or_skip
from helpers.command_line import environment
from helpers.tensors import dense_weight, normal
from helpers.zygote import forked_python

FORKING = """
import os, torch
from flash41.kernels.select import select_kernels
torch.set_num_threads(2)
kernels = select_kernels("cpu")
x, weight = torch.randn(4, 2048), torch.randn(256, 2048)
expected = kernels.linear(x, weight, torch.float32)
child = os.fork()
if child == 0:
    os._exit(0 if torch.equal(kernels.linear(x, weight, torch.float32), expected) else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert torch.equal(kernels.linear(x, weight, torch.float32), expected)
"""


@pytest.fixture
def two_threads() -> object:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_callers_side_by_side_get_their_own_results(two_threads: object) -> None:
    kernels = kernels_or_skip("cpu")
    weight = dense_weight(256, 1024)
    inputs = [normal(1 + number, 1024, seed=number) for number in range(8)]
    expected = [kernels.scaled_linear(x, weight) for x in inputs]
    with ThreadPoolExecutor(4) as callers:
        for _ in range(5):
            found = list(callers.map(lambda x: kernels.scaled_linear(x, weight), inputs))
            assert all(torch.equal(got, one) for got, one in zip(found, expected, strict=True))


def test_a_child_of_a_fork_has_threads_of_its_own() -> None:
    kernels_or_skip("cpu")
    told = subprocess.run(
        [*forked_python(), "-c", FORKING], capture_output=True, text=True, check=False, env=environment(), timeout=60
    )
    assert told.returncode == 0, told.stderr
