"""Tests of the embedded default share one."""

from helpers.default_fixtures import default_cache, default_directory

__all__ = ["default_cache", "default_directory"]
