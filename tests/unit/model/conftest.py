"""Tests of the drafter run the golden checkpoint."""

from helpers.model_fixtures import models

__all__ = ["models"]
