"""System tests run whole models; those of commands and servers run the embedded default."""

from helpers.default_fixtures import default_cache, default_directory
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
    "default_cache",
    "default_directory",
    "golden_traces",
    "models",
    "models_of_backends",
    "quick_models",
    "second_checkpoint",
]
