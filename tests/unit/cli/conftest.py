"""Commands that need a model use the embedded default, from a cache of the tests."""

from helpers.default_fixtures import default_cache, default_directory, user_cache

__all__ = ["default_cache", "default_directory", "user_cache"]
