"""Which files go first, and what the garbage collector need not look at."""

import gc
from pathlib import Path

import pytest

LONG_FILES_FIRST = (
    "shape/test_documents.py",
    "unit/kernels/cpu/test_exact_rows.py",  # builds a level for emulation, on which the other worker need not wait here
    "unit/kernels/cpu/test_products.py",  # and the portable one
    "shape",
    "system",
    "golden",
    "training",
    *(f"unit/{room}" for room in ("engine", "tools", "helpers", "cli", "server", "checkpoint", "kernels")),
)
"""Files and folders of `tests`; files of the others take a second or two."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A worker takes one file after another: the longest come first, so that none is begun when the others are done."""
    tests = Path(__file__).parent
    ranks = {tests / name: rank for rank, name in enumerate(LONG_FILES_FIRST)}

    def rank(item: pytest.Item) -> int:
        return min((ranks[one] for one in (item.path, *item.path.parents) if one in ranks), default=len(ranks))

    items.sort(key=rank)


def pytest_collection_finish() -> None:
    """Thousands of collected tests stay to the end: the garbage collector need not look through them again."""
    gc.collect()
    gc.freeze()
