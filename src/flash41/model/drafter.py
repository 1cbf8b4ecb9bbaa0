"""DSpark: the draft stages `mtp.s`, which propose g tokens from what the target model has just computed.

    feed     c_p  = RMS(main_proj(tap_1 ++ tap_2 ++ ...); main_norm)          one vector per target-processed position
             kv_s = round(RoPE_p(RMS(wkv_s c_p; kv_norm_s)))                  appended to the ring of every stage s
    draft    row          0      1      2      3      4                       P = newest processed position
             position     P+1    P+2    P+3    P+4    P+5
             id           x0     N      N      N      N                       x0 = token sampled at P+1, N = noise id
             drafts for   P+2    P+3    P+4    P+5    P+6

The taps are the mean over streams of the inputs of the target layers the configuration lists.  c enters the stages as
rows of context only.  A stage is an ordinary block with a window; every row of the block reads the context and the
whole block, and block rows are never kept.  Embedding and head are the target's.  spec: dspark.md sections 1 to 4.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from flash41.cache.views import BatchView, BlockView
from flash41.config.architecture import DsparkConfig
from flash41.kernels.interface import Kernels
from flash41.model.batch import ForwardBatch, Probe, Selections, Silent, Step
from flash41.model.block import Block
from flash41.model.draft_heads import Choice, DraftHeads, Drafts, most_likely
from flash41.model.linear import Linear, RMSNorm, ScaledLinear
from flash41.model.mhc import open_streams
from flash41.model.rope import Rope

WINDOW_RATIO = 0
"""Stages have no compressed rows, so they rotate like window layers."""


class TapProjection(nn.Module):
    """`mtp.0.main_proj` and `mtp.0.main_norm`."""

    def __init__(self, main_proj: ScaledLinear, main_norm: RMSNorm) -> None:
        super().__init__()
        self.main_proj = main_proj
        self.main_norm = main_norm

    def forward(self, taps: Tensor) -> Tensor:
        """[T, taps * D] -> [T, D]."""
        return self.main_norm(self.main_proj(taps))


class Drafter(nn.Module):
    """All draft stages with their heads; `layer_ids` name their rings."""

    def __init__(
        self,
        *,
        entrance: TapProjection,
        stages: Sequence[Block],
        layer_ids: Sequence[int],
        embed: Tensor,
        norm: RMSNorm,
        head: Linear,
        heads: DraftHeads,
        rope: Rope,
        config: DsparkConfig,
        streams: int,
        dtype: torch.dtype,
        kernels: Kernels,
    ) -> None:
        super().__init__()
        self.entrance = entrance
        self.stages = nn.ModuleList(stages)
        self._blocks = tuple(zip(layer_ids, stages, strict=True))
        self.embed = embed
        self.norm = norm
        self.head = head
        self.heads = heads
        self._rope = rope
        self._noise_token_id = config.noise_token_id
        self.block_size = config.block_size
        self._streams = streams
        self._dtype = dtype
        self._kernels = kernels

    @torch.inference_mode()
    def feed(self, taps: Tensor, positions: Tensor, view: BatchView) -> None:
        """Appends the context rows of a target forward: taps [T, taps * D] at int64 positions [T].

        Rows that no ring holds behind this batch are not computed.
        """
        kept = view.surviving
        main_x = self.entrance(taps[kept])
        angles = self._rope.angles(positions[kept], WINDOW_RATIO)
        for layer_id, stage in self._blocks:
            view.append_context(layer_id, stage.attn.context_row(main_x, angles))

    @torch.inference_mode()
    def forward(
        self, anchors: Tensor, view: BlockView, choose: Choice = most_likely, probe: Probe | None = None
    ) -> Drafts:
        """Drafts behind int64 anchors [n], one for every span of the view."""
        step = self._step(anchors, view, probe or Silent())
        x, pre_mix = open_streams(self.embed[step.batch.ids].to(self._dtype), self._streams)
        for number, (layer_id, stage) in enumerate(self._blocks):
            if step.probe.active:
                step.probe(f"mtp{number}.context_row", view.context(layer_id))
            x, pre_mix = stage(x, pre_mix, step, Selections())
            step.probe(f"mtp{number}.resid.out", x)
        hidden = self._kernels.mhc_collapse(x, pre_mix)
        base_logits = self.head(self.norm(hidden))
        block = (len(anchors), self.block_size, -1)
        drafts = self.heads(anchors, hidden.view(block), base_logits.view(block), choose)
        _record(step.probe, hidden, drafts)
        return drafts  # type: ignore[no-any-return]

    def _step(self, anchors: Tensor, view: BlockView, probe: Probe) -> Step:
        ids = torch.full((len(anchors), self.block_size), self._noise_token_id)
        ids[:, 0] = anchors
        positions = torch.cat([torch.arange(span.start, span.end) for span in view.spans])
        return Step(
            batch=ForwardBatch(ids=ids.flatten(), positions=positions, logit_rows=torch.arange(ids.numel()), engram={}),
            view=view,
            angles={WINDOW_RATIO: self._rope.angles(positions, WINDOW_RATIO)},
            visible={},
            most_visible={},
            probe=probe,
        )


def _record(probe: Probe, hidden: Tensor, drafts: Drafts) -> None:
    probe("draft.hidden", hidden)
    probe("draft.base_logits", drafts.base_logits.flatten(0, 1))
    probe("draft.logits", drafts.logits.flatten(0, 1))
    probe("draft.ids", drafts.ids.flatten())
    probe("draft.confidence", drafts.confidence.flatten())
