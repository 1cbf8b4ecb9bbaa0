"""Random weights in the true format, for any configuration.

Every tensor of the schema gets values whose scale keeps activations of order one, so that all mechanisms act: gates are
neither open nor shut, experts and rows compete, streams mix.  The values depend on the seed, the tensor's name and its
shape only (`checkpoint.randomness`), and are quantised by `checkpoint.quantize`: the same bytes on every machine.
"""

from collections.abc import Callable
from functools import lru_cache
from math import prod, sqrt

import torch
from torch import Tensor

from flash41.checkpoint.quantize import quantize_dense, quantize_expert, quantize_table
from flash41.checkpoint.randomness import normal
from flash41.checkpoint.schema import schema
from flash41.checkpoint.stored import StoredDtype, Subsystem, TensorSpec
from flash41.config.architecture import ModelConfig
from flash41.errors import CheckpointError, complaint
from flash41.numerics.scaled import Quantized

Values = Callable[[str, tuple[int, ...]], Tensor]
"""Draws FP32 values of deviation 1 for a name and a shape."""

HEAD_GAIN = 3.0
"""Deviation of the logits: sharp enough that near-ties between tokens are rare."""

STREAM_AFFINITY = 1.5
"""Added to the diagonal of the mixing logits: a stream mostly keeps itself."""


def synthetic_weights(config: ModelConfig, seed: int) -> Callable[[str], Tensor]:
    """A function from tensor name to stored tensor: uint8 codes and scale bytes, BF16 or FP32 values.

    Raises CheckpointError for a name the configuration's schema does not have.
    """
    specs = schema(config)

    def draw(name: str, shape: tuple[int, ...]) -> Tensor:
        return torch.from_numpy(normal(seed, name, shape))

    @lru_cache(maxsize=2)
    def quantized(prefix: str) -> Quantized:
        return _quantize(specs[f"{prefix}.weight"], draw)

    def stored(name: str) -> Tensor:
        spec = specs.get(name)
        if spec is None:
            raise CheckpointError(complaint("tensor name", name, "a name of the schema"))
        prefix, _, leaf = name.rpartition(".")
        if f"{prefix}.scale" in specs:
            pair = quantized(prefix)
            return pair.codes if leaf == "weight" else pair.scales
        dtype = torch.float32 if spec.dtype is StoredDtype.F32 else torch.bfloat16
        return _plain(spec, draw, config.mhc.streams).to(dtype)

    return stored


def _quantize(spec: TensorSpec, draw: Values) -> Quantized:
    shape = spec.layout.logical_shape
    if spec.layout.subsystem is Subsystem.ENGRAM_TABLE:
        return quantize_table(draw(spec.name, shape))
    values = draw(spec.name, shape) / sqrt(shape[1])
    return quantize_expert(values) if spec.dtype is StoredDtype.I8 else quantize_dense(values)


def _plain(spec: TensorSpec, draw: Values, streams: int) -> Tensor:
    """FP32 values of a tensor that is stored unquantised."""
    values: Tensor = draw(spec.name, spec.shape)
    name, leaf = spec.name, spec.name.rpartition(".")[2]
    subsystem = spec.layout.subsystem
    if leaf.startswith(("hc_attn", "hc_ffn")):
        return _mixing(leaf, values, streams)
    if leaf in ("attn_sink", "bias", "bias_vl"):
        return values * (0.5 if leaf == "attn_sink" else 0.05)
    if subsystem in (Subsystem.EMBED, Subsystem.IMAGE_VECTOR) or name.endswith("markov_head.embed.weight"):
        return values
    if prod(spec.shape) == spec.shape[-1] or subsystem is Subsystem.ENGRAM_NORM:
        if subsystem is Subsystem.CONFIDENCE:
            return values / sqrt(spec.shape[-1])
        return 1.0 + 0.1 * values
    gain = HEAD_GAIN if subsystem is Subsystem.HEAD else 1.0
    return values * (gain / sqrt(spec.shape[-1]))


def _mixing(leaf: str, values: Tensor, streams: int) -> Tensor:
    """Hyper-connection parameters: `fn` predicts small corrections to `base`."""
    if leaf.endswith("fn"):
        return values * (0.5 / sqrt(values.shape[-1]))
    if leaf.endswith("scale"):
        return 1.0 + 0.1 * values
    base = 0.5 * values
    base[2 * streams :] += STREAM_AFFINITY * torch.eye(streams).flatten()
    return base
