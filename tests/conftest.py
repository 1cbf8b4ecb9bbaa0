"""Compiled kernels are shared by all tests, whatever cache directory a test gives a program; which files go first."""

import gc
import os
from pathlib import Path

import platformdirs
import pytest

from flash41.kernels.cpu.build import CACHE_VARIABLE

LONG_FILES_FIRST = ("shape", "system", "golden", "training", "unit/engine")
"""Folders of `tests`; files of the others take a second or two."""


def pytest_configure() -> None:
    os.environ.setdefault(CACHE_VARIABLE, str(platformdirs.user_cache_path("flash41")))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A worker takes one file after another: the longest come first, so that none is begun when the others are done."""
    tests = Path(__file__).parent
    ranks = {tests / folder: rank for rank, folder in enumerate(LONG_FILES_FIRST)}
    items.sort(key=lambda item: min((ranks[one] for one in item.path.parents if one in ranks), default=len(ranks)))


def pytest_collection_finish() -> None:
    """Thousands of collected tests stay to the end: the garbage collector need not look through them again."""
    gc.collect()
    gc.freeze()
