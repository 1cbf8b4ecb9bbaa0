"""Where training begins: values that keep activations of order one and logits small, and heads that look back.

A query of this world must be joined with what stands a few tokens before a word (who is *in the market*).  Such a head
forms slowly from random weights, and nothing that is asked rewards half of it.  So the first layers begin with heads
that attend to a fixed distance, by RoPE alone: channel 0 of every embedding is one constant, from which

    k_i = c_i (1, 0),    q_i = a_i (cos t_i d, -sin t_i d)      pair i of the rotated channels, t_i its angle per token
    logit(q at p, k at s) = sum_i a_i c_i cos(t_i (p - s - d)) / sqrt(d_h)        largest at p - s = d

Nothing holds them there afterwards.
"""

from collections.abc import Mapping
from math import cos, prod, sin, sqrt

import torch
from torch import Tensor, nn

from flash41.checkpoint.stored import Subsystem, TensorSpec
from flash41.config.architecture import ModelConfig
from flash41.model.rope import plain_frequencies, yarn_frequencies

STREAM_AFFINITY = 1.5
"""Added to the diagonal of the mixing logits at the start: a stream mostly keeps itself."""
CONSTANT = 2.0
"""Channel 0 of an embedding; the others have a deviation of one half."""
DISTANCES: tuple[tuple[int | None, ...], ...] = ((1, 2, 3, 4), (4, None, None, None))
"""Tokens that the heads of the first layers look back; None: a head of random weights."""
KEY_SIZES = (3.5, 2.5, 1.5)
"""c_i of the fastest pairs, beside channels of order one; slower pairs cannot tell places of a window apart."""
QUERY_SIZES = (12.0, 8.0, 8.0)
CLOSED = -8.0
"""Selection bias of an expert that pictures do not visit."""


def first_of_pictures(num_experts: int) -> int:
    """The first of the experts that pictures visit, the last quarter of all: so `bias_vl` tells them from text."""
    return max(0, num_experts - max(2, num_experts // 4))


def initial(spec: TensorSpec, shape: tuple[int, ...], streams: int, generator: torch.Generator) -> Tensor:
    """Random values of one master."""
    leaf, subsystem = spec.name.rpartition(".")[2], spec.subsystem
    values = torch.randn(shape, generator=generator)
    if leaf.startswith(("hc_attn", "hc_ffn")):
        return _mixing(leaf, values, streams)
    if leaf in ("attn_sink", "bias"):
        return torch.zeros(shape)
    if leaf == "bias_vl":
        return torch.where(torch.arange(shape[0]) < first_of_pictures(shape[0]), CLOSED, 0.0)
    if subsystem is Subsystem.ENGRAM_NORM or (prod(shape) == shape[-1] and subsystem is not Subsystem.CONFIDENCE):
        # Norm weights begin at one; the three vectors around image tokens are embeddings.
        return values * 0.5 if subsystem is Subsystem.IMAGE_VECTOR else torch.ones(shape)
    if subsystem is Subsystem.EMBED:
        return values * 0.5
    if subsystem is Subsystem.ENGRAM_TABLE:
        return torch.zeros(shape)  # n-grams that were never met say nothing
    if subsystem in (Subsystem.HEAD, Subsystem.MARKOV):
        return values * (0.5 / sqrt(shape[-1]))
    gain = 0.5 if leaf == "weight" and spec.name.endswith(("wo_b.weight", "w2.weight")) else 1.0
    return values * (gain / sqrt(shape[-1]))


@torch.no_grad()
def look_back(parameters: Mapping[str, nn.Parameter], config: ModelConfig) -> None:
    """Turns heads of the first layers to fixed distances, and gives every embedding the constant they need."""
    parameters["embed.weight"][:, 0] = CONSTANT
    constant = CONSTANT / sqrt(0.25 + CONSTANT**2 / config.hidden_size)  # channel 0 after a norm
    attention, rope = config.attention, config.rope
    for layer, distances in enumerate(DISTANCES):
        prefix = f"layers.{layer}.attn"
        angles = plain_frequencies(rope) if attention.compress_ratios[layer] == 0 else yarn_frequencies(rope)
        first = attention.head_dim - rope.head_dim
        wq_a, wq_b, wkv = (parameters[f"{prefix}.{name}.weight"] for name in ("wq_a", "wq_b", "wkv"))
        wq_a[0] = 0.0
        wq_a[0, 0] = 1.0
        for pair, (key, query, angle) in enumerate(zip(KEY_SIZES, QUERY_SIZES, angles, strict=False)):
            low = first + 2 * pair
            wkv[low : low + 2] = 0.0
            wkv[low, 0] = key / constant
            for head, distance in enumerate(distances[: attention.num_heads]):
                if distance is None:
                    continue
                rows = wq_b[head * attention.head_dim + low :][:2]
                rows[:] = 0.0
                rows[0, 0] = query * cos(angle * distance) / constant
                rows[1, 0] = -query * sin(angle * distance) / constant


def _mixing(leaf: str, values: Tensor, streams: int) -> Tensor:
    """Hyper-connections: `fn` predicts small corrections to `base`, whose noise tells the streams apart."""
    if leaf.endswith("fn"):
        return values * (0.1 / sqrt(values.shape[-1]))
    if leaf.endswith("scale"):
        return torch.ones(values.shape)
    base = 0.5 * values
    base[2 * streams :] += STREAM_AFFINITY * torch.eye(streams).flatten()
    return base
