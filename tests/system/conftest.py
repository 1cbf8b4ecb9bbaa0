"""System tests run whole models, some on two checkpoints."""

from helpers.model_fixtures import checkpoint, golden_traces, models, models_of_backends, second_checkpoint

__all__ = ["checkpoint", "golden_traces", "models", "models_of_backends", "second_checkpoint"]
