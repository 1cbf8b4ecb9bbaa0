"""The text model: embedding, blocks, collapse, head.

The embedding row, or the image row in its place, is copied to all streams; the collapse weights start as the one-hot of
stream 0 and pass from sub-layer to sub-layer; the last ones collapse the final residual (there is no learned
contraction).  The head is multiplied in FP32 and logits stay FP32.  spec: mhc.md section 1, vision.md section 6.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from flash41.cache.views import BatchView
from flash41.kernels.interface import Kernels
from flash41.model.batch import ForwardBatch, Probe, Selections, Silent, Step
from flash41.model.block import Block
from flash41.model.linear import Linear, RMSNorm
from flash41.model.mhc import open_streams
from flash41.model.rope import Rope
from flash41.model.tail import narrowed, narrowed_selections


@dataclass(frozen=True, slots=True, kw_only=True)
class BackboneOutput:
    """What a forward leaves."""

    logits: Tensor
    """FP32 [n, vocab] of the batch's logit rows."""
    taps: Tensor
    """[T, taps * D]: mean over streams of the inputs of the tapped layers, after their Engram.

    Rows of tails only, where a layer before the last one began to compute no others.
    """


class Backbone(nn.Module):
    """`embed`, `layers`, `norm` and `head` of a checkpoint."""

    def __init__(
        self,
        *,
        embed: Tensor,
        layers: Sequence[Block],
        norm: RMSNorm,
        head: Linear,
        rope: Rope,
        streams: int,
        ratios: Sequence[int],
        tap_layer_ids: Sequence[int],
        tail_layer: int,
        dtype: torch.dtype,
        kernels: Kernels,
    ) -> None:
        super().__init__()
        self.embed = embed
        self.layers = nn.ModuleList(layers)
        self._blocks = tuple(layers)
        self.norm = norm
        self.head = head
        self._rope = rope
        self._streams = streams
        self._ratios = sorted(set(ratios))
        self._tap_layer_ids = frozenset(tap_layer_ids)
        self._tail_layer = tail_layer
        self._dtype = dtype
        self._kernels = kernels

    @torch.inference_mode()
    def forward(self, batch: ForwardBatch, view: BatchView, probe: Probe | None = None) -> BackboneOutput:
        """One forward of the batch; appends its rows to the caches behind `view`."""
        step = self._step(batch, view, probe or Silent())
        rows = self._embed_rows(batch)
        step.probe("embed", rows)
        x, pre_mix = open_streams(rows, self._streams)
        selections, taps = Selections(), list[Tensor]()
        for layer_id, block in enumerate(self._blocks):
            tail = step.view.tail() if layer_id == self._tail_layer else None
            if tail is not None:
                view, kept = tail
                step, selections = narrowed(step, view, kept), narrowed_selections(selections, kept)
                x, pre_mix, taps = x[kept], pre_mix[kept], [tap[kept] for tap in taps]
            if len(x) == 0:
                break  # a part of a prompt of which no later layer sees anything
            x = block.add_engram(x, step)
            if layer_id in self._tap_layer_ids:
                taps.append(x.double().mean(1).float().to(x.dtype))
            x, pre_mix = block(x, pre_mix, step, selections)
        tapped = torch.cat(taps, 1) if taps else x.new_zeros(len(x), 0)
        step.probe("dspark.taps", tapped)
        step.probe("final.resid", x)
        step.probe("final.pre", pre_mix)
        return BackboneOutput(logits=self._logits(x, pre_mix, step), taps=tapped)

    def _embed_rows(self, batch: ForwardBatch) -> Tensor:
        rows = self.embed[batch.ids].to(self._dtype)
        if batch.image_mask is not None and batch.image_rows is not None:
            rows[batch.image_mask] = batch.image_rows.to(self._dtype)
        return rows

    def _step(self, batch: ForwardBatch, view: BatchView, probe: Probe) -> Step:
        compressed = [ratio for ratio in self._ratios if ratio > 0]
        last = max(span.end for span in view.spans)
        # All compressed ratios turn by one table.
        turns = {kind: self._rope.angles(batch.positions, kind) for kind in {min(ratio, 1) for ratio in self._ratios}}
        return Step(
            batch=batch,
            view=view,
            angles={ratio: turns[min(ratio, 1)] for ratio in self._ratios},
            visible={ratio: (batch.positions + 1) // ratio for ratio in compressed},
            most_visible={ratio: last // ratio for ratio in compressed},
            probe=probe,
        )

    def _logits(self, x: Tensor, pre_mix: Tensor, step: Step) -> Tensor:
        wanted = slice(None) if step.probe.active else step.batch.logit_rows
        hidden = self._kernels.mhc_collapse(x[wanted], pre_mix[wanted])
        normed = self.norm(hidden)
        step.probe("final.hidden", hidden)
        step.probe("final.norm", normed)
        return self.head(normed[step.batch.logit_rows] if step.probe.active else normed)
