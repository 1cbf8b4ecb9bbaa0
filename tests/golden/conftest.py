"""Golden tests run whole models, on every backend."""

import pytest

from helpers.model_fixtures import golden_traces, models_of_backends
from helpers.models import Models

__all__ = ["golden_traces", "models_of_backends"]


@pytest.fixture(scope="session")
def models(models_of_backends: Models) -> Models:
    return models_of_backends
