"""System tests run whole models, some on two checkpoints."""

from helpers.model_fixtures import checkpoint, golden_traces, models, second_checkpoint

__all__ = ["checkpoint", "golden_traces", "models", "second_checkpoint"]
