"""Compiled kernels are shared by all tests, whatever cache directory a test gives a program; and who runs first."""

import gc
import os

import platformdirs
import pytest

from flash41.kernels.cpu.build import CACHE_VARIABLE


def pytest_configure() -> None:
    os.environ.setdefault(CACHE_VARIABLE, str(platformdirs.user_cache_path("flash41")))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts the longest tests first, so that no worker begins one when the others are done."""
    items.sort(key=lambda item: item.path.name != "test_documents.py")


def pytest_collection_finish() -> None:
    """Thousands of collected tests stay to the end: the garbage collector need not look through them again."""
    gc.collect()
    gc.freeze()
