"""Tests of traces run whole models."""

from helpers.default_fixtures import default_cache, default_directory
from helpers.model_fixtures import models

__all__ = ["default_cache", "default_directory", "models"]
