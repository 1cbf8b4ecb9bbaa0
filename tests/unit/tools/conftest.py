"""Tests of traces run whole models."""

from helpers.default_fixtures import tiny_directory
from helpers.model_fixtures import models

__all__ = ["models", "tiny_directory"]
