"""System tests run whole models; those of commands and servers run a small random one."""

from helpers.default_fixtures import default_directory, tiny_directory
from helpers.model_fixtures import (
    checkpoint,
    golden_traces,
    models,
    models_of_backends,
    quick_models,
    second_checkpoint,
)

__all__ = [
    "checkpoint",
    "default_directory",
    "golden_traces",
    "models",
    "models_of_backends",
    "quick_models",
    "second_checkpoint",
    "tiny_directory",
]
