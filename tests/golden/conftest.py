"""Golden tests run whole models."""

from helpers.model_fixtures import golden_traces, models

__all__ = ["golden_traces", "models"]
