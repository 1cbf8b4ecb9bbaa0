"""Commands that need a model use the embedded default, or a random one in its place."""

from helpers.default_fixtures import default_directory, tiny_as_default, tiny_directory

__all__ = ["default_directory", "tiny_as_default", "tiny_directory"]
