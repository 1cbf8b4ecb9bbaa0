"""Mechanisms of the model, each of which can be left out of a run: what do its answers need?

    LLM(DIR, change=Ablations((ABLATIONS["engram"], ABLATIONS["window"])))

An ablation is made where a model is opened, in kernels or modules; everything else computes as before, and nothing is
trained again.  What a mechanism hands on has the same shape without it: no rows, the own row, the first stream.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, cast

import torch
from torch import Tensor

from flash41.config.architecture import ModelConfig
from flash41.config.topology import LayerSpec, topology
from flash41.engine.load import LoadedModel
from flash41.errors import RequestError, combined, complaint
from flash41.kernels.interface import Kernels
from flash41.tools.ablated_modules import BlankTokens, SelectsNothing, SelectsWhatTheSourceDid, WithoutWindow
from flash41.tools.broken_kernels import (
    WithFirstStream,
    WithLatestRows,
    WithMeanPooling,
    WithoutEngram,
    WithoutRouterBias,
    WithoutSharedExpert,
    WithoutSink,
    Wrapped,
)


class WithoutRoutedExperts(Wrapped):
    """Adds the shared expert only."""

    def experts(self, x: Tensor, ids: Tensor, weights: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
        """Drops the routed output."""
        routed, shared = self.inner.experts(x, ids, weights, *rest)
        return torch.zeros_like(routed), shared


def _attentions(model: LoadedModel) -> list[tuple[LayerSpec, Any]]:
    blocks: list[Any] = list(model.backbone.layers)
    return list(zip(topology(model.config).layers, blocks, strict=True))


def _select_nothing(model: LoadedModel) -> None:
    for spec, block in _attentions(model):
        if spec.scores:
            block.attn.indexer = SelectsNothing(block.attn.indexer)


def _select_as_the_source(model: LoadedModel) -> None:
    source = model.config.indexer.candidate_source_layer_id
    assert source is not None, "no scorer is bounded without a source"
    for spec, block in _attentions(model):
        if spec.bounded_by_candidates:
            block.attn.indexer = SelectsWhatTheSourceDid(block.attn.indexer, source)


def _see_the_own_row(model: LoadedModel) -> None:
    for _, block in _attentions(model):
        block.attn = WithoutWindow(block.attn)


def _route_pictures_as_text(model: LoadedModel) -> None:
    for _, block in _attentions(model):
        block.ffn.bias_vl = block.ffn.bias


def _show_nothing(model: LoadedModel) -> None:
    if model.encoder is not None:
        model.encoder.aligner = BlankTokens(model.encoder.aligner)  # type: ignore[assignment]


def _unaltered(_model: LoadedModel) -> None:
    """Kernels alone are replaced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ablation:
    """One mechanism, left out."""

    what: str
    """What the model does without it."""
    kernels: Callable[[Kernels], Any] | None = None
    alter: Callable[[LoadedModel], None] = _unaltered
    keywords: Mapping[str, Any] = field(default_factory=dict)
    """Options of the engine that leave it out."""
    of_layer: Callable[[LayerSpec], bool] | None = None
    """Whether a layer has the mechanism; None where every model has it."""
    of_model: Callable[[ModelConfig], bool] = lambda _config: True
    """Whether a model can have it."""

    def is_in(self, config: ModelConfig) -> bool:
        """Whether a model has the mechanism."""
        in_layers = self.of_layer is None or any(map(self.of_layer, topology(config).layers))
        return in_layers and self.of_model(config)


ABLATIONS: Mapping[str, Ablation] = MappingProxyType({
    "engram": Ablation(
        what="no n-gram row is added", kernels=WithoutEngram, of_layer=lambda spec: spec.has_engram
    ),
    "window": Ablation(what="a query sees its own row of the window, and no earlier one", alter=_see_the_own_row),
    "compressed": Ablation(
        what="no compressed row is selected", alter=_select_nothing, of_layer=lambda spec: spec.scores
    ),
    "topk": Ablation(
        what="the newest compressed rows are selected, not the best",
        kernels=WithLatestRows,
        of_layer=lambda spec: spec.scores,
    ),
    "candidates": Ablation(
        what="scorers inside candidate blocks select what the source of the blocks did",
        alter=_select_as_the_source,
        of_layer=lambda spec: spec.bounded_by_candidates,
    ),
    "pooling": Ablation(
        what="tokens of a compressed row are weighed alike",
        kernels=WithMeanPooling,
        of_layer=lambda spec: spec.writes_plane and spec.ratio > 1,
    ),
    "sink": Ablation(what="attention has no sink", kernels=WithoutSink),
    "mhc": Ablation(
        what="every sub-layer reads the first residual stream",
        kernels=WithFirstStream,
        of_model=lambda config: config.mhc.streams > 1,
    ),
    "experts": Ablation(what="routed experts add nothing, the shared one remains", kernels=WithoutRoutedExperts),
    "shared_expert": Ablation(what="the shared expert adds nothing", kernels=WithoutSharedExpert),
    "router_bias": Ablation(what="experts are chosen without a bias", kernels=WithoutRouterBias),
    "bias_vl": Ablation(
        what="positions of pictures choose experts with the bias of text", alter=_route_pictures_as_text
    ),
    "vision": Ablation(what="pictures are blank: image tokens are zero", alter=_show_nothing),
    "drafts": Ablation(
        what="no token is drafted; only the speed may change",
        keywords={"draft": "off", "draft_accept": None},
        of_model=lambda config: config.dspark.num_stages > 0,
    ),
})  # fmt: skip
"""Every ablation, by the name that commands know."""


@dataclass(frozen=True, slots=True)
class Ablations:
    """Several of them in one model; a `ModelChange`."""

    ablations: Sequence[Ablation]

    def on(self, kernels: Kernels) -> Kernels:
        """Kernels with all that is left out in them."""
        for ablation in self.ablations:
            kernels = kernels if ablation.kernels is None else cast(Kernels, ablation.kernels(kernels))
        return kernels

    @property
    def keywords(self) -> dict[str, Any]:
        """Keywords of `LLM` that go with the change."""
        return {name: value for ablation in self.ablations for name, value in ablation.keywords.items()}

    def alter(self, model: LoadedModel, /) -> None:
        """Alters the modules for each."""
        for ablation in self.ablations:
            ablation.alter(model)


def named_ablations(names: Sequence[str], config: ModelConfig) -> Ablations:
    """The ablations of these names.  Raises RequestError listing unknown ones, and those the model has nothing of."""
    faults = []
    for name in names:
        if name not in ABLATIONS:
            faults.append(complaint("mechanism", name, f"one of {', '.join(ABLATIONS)}"))
        elif not ABLATIONS[name].is_in(config):
            faults.append(complaint("mechanism", name, "one that this model has"))
    if faults:
        raise RequestError(combined(faults))
    return Ablations([ABLATIONS[name] for name in dict.fromkeys(names)])
