"""Compiled kernels are shared by all tests, whatever cache directory a test gives a program."""

import os

import platformdirs

from flash41.kernels.cpu.build import CACHE_VARIABLE


def pytest_configure() -> None:
    os.environ.setdefault(CACHE_VARIABLE, str(platformdirs.user_cache_path("flash41")))
