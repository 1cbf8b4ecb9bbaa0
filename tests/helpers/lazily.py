"""Modules that take long to import, imported when a test first uses them.

    openai = lazily("openai")

Every worker collects every file, and few of them run its tests.  Annotations may name such a module where they are not
evaluated (`from __future__ import annotations`).
"""

import importlib
from typing import Any


class _Lazy:
    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(importlib.import_module(self._name), attribute)


def lazily(name: str) -> Any:
    """The module of this name, imported with the first use of one of its attributes."""
    return _Lazy(name)
