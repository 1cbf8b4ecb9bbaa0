"""Inference engine and reference implementation for DeepSeek-V4.1-Flash.

The public names are loaded when they are first used, so that importing the package, or a room of it that needs no
tensors, stays a matter of milliseconds.
"""

from importlib import import_module
from typing import Any

from flash41.version import __version__

_HOMES = {
    "LLM": "flash41.engine.llm",
    "ModelConfig": "flash41.config.architecture",
    "SamplingParams": "flash41.engine.request",
}

__all__ = ["LLM", "ModelConfig", "SamplingParams", "__version__"]


def __getattr__(name: str) -> Any:
    """A public name from the module it lives in; AttributeError for any other."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    """The public names."""
    return sorted(__all__)
