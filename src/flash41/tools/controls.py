"""The model with one mechanism left out or replaced: what a comparison must notice.

A control wraps the kernels of a run, or alters the model once it is open; everything else stays as it is.  Each names
the points at which the difference first shows, and from which length of prompt on it can show at all.
Mechanisms are those that ports are known to get wrong (spec: pitfalls.md, fixtures.md).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from flash41.config.architecture import ModelConfig
from flash41.config.topology import LayerMode, topology
from flash41.engine.load import LoadedModel
from flash41.kernels.interface import Kernels
from flash41.model.rope import Rope, yarn_frequencies
from flash41.tools.broken_kernels import (
    WithFirstStream,
    WithLatestRows,
    WithMeanPooling,
    WithoutCandidates,
    WithoutEngram,
    WithoutExpert,
    WithoutOutputRotation,
    WithoutRelu,
    WithoutRouterBias,
    WithoutRouteScale,
    WithoutSharedExpert,
    WithoutSink,
    WithTransposedComb,
    WithWeightAfterDown,
)


class NormedHeads(nn.Module):
    """A query projection whose heads are normalised, as the model's predecessor did."""

    def __init__(self, inner: Any, head_dim: int) -> None:
        super().__init__()
        self.inner = inner
        self._head_dim = head_dim

    def forward(self, x: Tensor) -> Tensor:
        """Of a layer without scores."""
        return self._normed(self.inner(x))

    def beside(self, other: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        """Of a scorer, which projects its index heads along."""
        heads, index_heads = self.inner.beside(other, x)
        return self._normed(heads), index_heads

    def _normed(self, heads: Tensor) -> Tensor:
        split = heads.view(heads.shape[0], -1, self._head_dim)
        return (split * split.square().mean(-1, keepdim=True).add(1e-20).rsqrt()).view(heads.shape)


def _norm_queries(model: LoadedModel) -> None:
    for layer in model.backbone.layers:
        attention = cast(Any, layer).attn
        attention.wq_b = NormedHeads(attention.wq_b, model.config.attention.head_dim)


def _ropes(model: LoadedModel) -> list[Rope]:
    return [module for module in model.backbone.modules() if isinstance(module, Rope)]


def _swap_rotary_tables(model: LoadedModel) -> None:
    for rope in _ropes(model):
        rope.window_frequencies, rope.compressed_frequencies = rope.compressed_frequencies, rope.window_frequencies


def _without_yarn(model: LoadedModel) -> None:
    config, width = model.config.rope, model.config.rope.head_dim
    unscaled = [config.compress_theta ** (-2 * i / width) for i in range(width // 2)]
    for rope in _ropes(model):
        rope.compressed_frequencies = torch.tensor(unscaled, dtype=torch.float32)


def _unaltered(_model: LoadedModel) -> None:
    """Kernels alone are replaced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """One mechanism, broken."""

    name: str
    shows_at: tuple[str, ...]
    """Kinds of points, any of which may be the first to diverge."""
    kernels: Callable[[Kernels], Any] | None = None
    alter: Callable[[LoadedModel], None] = _unaltered
    tokens: Callable[[ModelConfig], int | None] = lambda _config: 2
    """Tokens from which on it can show; None where this model does not have it."""
    needs_rounding: bool = False
    """Whether it is the same number in exact arithmetic, so that profile fp32 cannot see it."""

    def on(self, kernels: Kernels) -> Kernels:
        """The kernels a run with this control uses."""
        return kernels if self.kernels is None else cast(Kernels, self.kernels(kernels))


def _beyond_topk(config: ModelConfig) -> int | None:
    """One row more than a query may read is visible."""
    ratios = [spec.ratio for spec in topology(config).layers if spec.scores]
    return (config.indexer.topk + 1) * min(ratios) + 1 if ratios else None


def _beyond_blocks(config: ModelConfig) -> int | None:
    """A candidate block is dropped, and a later scorer could have chosen from it."""
    source = config.indexer.candidate_source_layer_id
    layers = topology(config).layers
    if source is None or not any(spec.mode is LayerMode.REINDEX and spec.layer_id > source for spec in layers):
        return None
    rows = config.indexer.candidate_blocks * config.indexer.candidate_block_size
    return (rows + 2 * config.indexer.candidate_block_size) * layers[source].ratio


def _with_engram(config: ModelConfig) -> int | None:
    return 2 if any(spec.has_engram for spec in topology(config).layers) else None


def _with_scores(config: ModelConfig) -> int | None:
    return 4 if any(spec.scores for spec in topology(config).layers) else None


def _with_pairs(config: ModelConfig) -> int | None:
    return 4 if any(spec.writes_plane and spec.ratio > 1 for spec in topology(config).layers) else None


def _turned_by_yarn(config: ModelConfig) -> int | None:
    """Positions up to one whose angle differs by an eighth of a radian between the tables."""
    if not any(spec.ratio for spec in topology(config).layers):
        return None
    width, theta = config.rope.head_dim, config.rope.compress_theta
    scaled = yarn_frequencies(config.rope)
    change = max(abs(theta ** (-2 * i / width) - scaled[i]) for i in range(width // 2))
    return math.ceil(EIGHTH / change) + 1 if change else None


def _with_streams(config: ModelConfig) -> int | None:
    return 4 if config.mhc.streams > 1 else None


EIGHTH = 0.125
STREAMS = ("resid.in", "resid.mid", "attn.in", "ffn.in", "final.resid", "final.hidden")
TABLES = ("attn.q", "attn.window_row", "index.key", "attn.main_row", "index.q")

CONTROLS = (
    Control(name="index scores without ReLU", shows_at=("index.scores",), kernels=WithoutRelu, tokens=_with_scores),
    Control(name="a norm over every query head (V4)", shows_at=("attn.q",), alter=_norm_queries),
    Control(
        name="stream mix transposed",
        shows_at=(*STREAMS, "attn.pre", "attn.post", "attn.comb", "ffn.pre", "ffn.post", "ffn.comb"),
        kernels=WithTransposedComb,
        tokens=_with_streams,
    ),
    Control(name="streams collapsed to the first", shows_at=STREAMS, kernels=WithFirstStream, tokens=_with_streams),
    Control(name="Engram left out", shows_at=("resid.after_engram",), kernels=WithoutEngram, tokens=_with_engram),
    Control(
        name="candidate blocks ignored", shows_at=("index.selected",), kernels=WithoutCandidates, tokens=_beyond_blocks
    ),
    Control(
        name="newest rows instead of the best",
        shows_at=("index.selected",),
        kernels=WithLatestRows,
        tokens=_beyond_topk,
    ),
    Control(name="groups pooled by their mean", shows_at=("attn.latent",), kernels=WithMeanPooling, tokens=_with_pairs),
    Control(name="rotary tables swapped", shows_at=TABLES, alter=_swap_rotary_tables, tokens=lambda _config: 8),
    Control(name="rotary table without YaRN", shows_at=TABLES, alter=_without_yarn, tokens=_turned_by_yarn),
    Control(name="output not turned back", shows_at=("attn.out",), kernels=WithoutOutputRotation),
    Control(name="no attention sink", shows_at=("attn.out",), kernels=WithoutSink),
    Control(
        name="one expert left out",
        shows_at=("ffn.out",),
        kernels=lambda inner: WithoutExpert(inner, 3),
        tokens=lambda config: 4 * config.moe.num_experts // config.moe.num_experts_per_token,
    ),
    Control(name="shared expert left out", shows_at=("ffn.out",), kernels=WithoutSharedExpert),
    Control(
        name="router without its bias", shows_at=("router.ids",), kernels=WithoutRouterBias, tokens=lambda _config: 32
    ),
    Control(name="no route scale", shows_at=("router.weights",), kernels=WithoutRouteScale),
    Control(name="routing weight behind w2", shows_at=("ffn.out",), kernels=WithWeightAfterDown, needs_rounding=True),
)
"""Every control, in the order of the forward."""
