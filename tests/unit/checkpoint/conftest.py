"""Tests of the embedded default and of what is read as it."""

from helpers.default_fixtures import default_directory

__all__ = ["default_directory"]
