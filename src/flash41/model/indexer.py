"""The indexer: which compressed rows each query reads.

    k_j    = round(RoPE_{j*ratio}(RMS(wk latent_j; k_norm)))         FULL layers, written to the owner's index plane
    q_h    = round(RoPE_p((wq_b qr)_h)),   w_h = (weights_proj x)_h * (head_dim * heads)^(-1/2)
    I(p,j) = sum_h w_h relu(q_h . k_j)

    selected(p) = the topk best visible rows, ascending
    candidates(p) of the candidate source bound the selections of later scorers, for the same row of the same forward

`round` is FP4/32; with an FP8 index plane (profile atom) one power-of-two FP8 scale per row; nothing in profile fp32.
spec: attention.md section 11.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from flash41.cache.views import Rows, Span
from flash41.config.architecture import IndexerConfig
from flash41.config.topology import LayerSpec
from flash41.kernels.interface import Kernels
from flash41.model.batch import Angles, Selection, Selections, Step
from flash41.model.linear import Linear, RMSNorm, ScaledLinear
from flash41.model.rounding import Rounding, as_tensor
from flash41.numerics.stored_rows import Keys, PagedRows

RowsOfBand = Tensor | slice
"""Which rows of a forward are scored at once; all of them, mostly."""

SCORES_PER_BAND = 1 << 25
"""Scores held at a time; bounds memory at long context, never changes a result."""


class IndexKey(nn.Module):
    """`wk` and `k_norm` of an owner: latent rows to index keys."""

    def __init__(self, wk: Linear, k_norm: RMSNorm, rounding: Rounding, kernels: Kernels) -> None:
        super().__init__()
        self.wk = wk
        self.k_norm = k_norm
        self._round = rounding
        self._kernels = kernels

    def forward(self, latent: Tensor, angles: Angles) -> Rows:
        """Keys [n, index_d] of latents [n, d], rotated at the first position of their group and rounded."""
        return self._round(self._kernels.rotate(self.k_norm(self.wk(latent)), *angles))


class Indexer(nn.Module):
    """Queries, scores and selection of one scoring layer."""

    def __init__(
        self,
        spec: LayerSpec,
        config: IndexerConfig,
        wq_b: ScaledLinear,
        weights_proj: Linear,
        key: IndexKey | None,
        *,
        rounding: Rounding,
        bf16_chain: bool,
        stale_owner: int | None,
        kernels: Kernels,
    ) -> None:
        super().__init__()
        self.wq_b = wq_b
        self.weights_proj = weights_proj
        self.key = key
        self._spec = spec
        self._config = config
        self._round = rounding
        self._scores = kernels.index_scores_bf16_chain if bf16_chain else kernels.index_scores
        self._stale_owner = stale_owner
        self._kernels = kernels

    def forward(self, x: Tensor, heads: Tensor, step: Step, selections: Selections) -> Selection:
        """Selection for every row of the forward, from the inputs x [T, D] and wq_b's output [T, heads * d].

        The candidate source also leaves its blocks in `selections`.
        """
        config, spec, name = self._config, self._spec, f"L{self._spec.layer_id}.index"
        q = heads.view(-1, config.num_heads, config.head_dim)
        q = as_tensor(self._round(self._kernels.rotate(q, *step.angles[spec.ratio])), q.dtype)
        weights = self.weights_proj(x).float() * (config.head_dim * config.num_heads) ** -0.5
        step.probe(f"{name}.q", q)
        step.probe(f"{name}.weights", weights)
        num_rows, most = x.shape[0], step.most_visible[spec.ratio]
        selected = torch.full((num_rows, config.topk), -1)
        if spec.produces_candidates:
            width = min(config.candidate_blocks, -(-most // config.candidate_block_size))
            selections.candidates = torch.full((num_rows, width), -1)
        trace = torch.full((num_rows, most), -torch.inf) if step.probe.active else None
        # A trace shows all scores, also those that no selection looks at.
        blocks = selections.candidates if spec.bounded_by_candidates and trace is None else None
        for rows, scores in self._bands(q, weights, step, blocks):
            visible = step.visible[spec.ratio][rows]
            selected[rows] = self._select(rows, scores, visible, selections)
            if trace is not None:
                hidden = torch.arange(scores.shape[1]) >= visible.unsqueeze(1)
                trace[rows, : scores.shape[1]] = scores.masked_fill(hidden, -torch.inf)
        if trace is not None:
            step.probe(f"{name}.scores", trace)
        if spec.produces_candidates and selections.candidates is not None:
            step.probe(f"{name}.candidates", selections.candidates)
        step.probe(f"{name}.selected", selected)
        counts = (selected >= 0).sum(1)
        return Selection(rows=selected, width=min(config.topk, most), counts=counts)

    def _select(self, rows: RowsOfBand, scores: Tensor, visible: Tensor, selections: Selections) -> Tensor:
        config = self._config
        allowed = torch.arange(scores.shape[1]) < visible.unsqueeze(1)
        if self._spec.produces_candidates:
            blocks = self._kernels.candidate_blocks(
                scores, visible, config.candidate_blocks, config.candidate_block_size
            )
            assert selections.candidates is not None
            selections.candidates[rows, : blocks.shape[1]] = blocks
        if self._spec.bounded_by_candidates:
            assert selections.candidates is not None, "a bounded scorer ran before the candidate source"
            inside = self._kernels.inside_blocks(
                selections.candidates[rows], scores.shape[1], config.candidate_block_size
            )
            allowed &= inside
        return self._kernels.select_rows(scores, allowed, config.topk)

    def _bands(
        self, q: Tensor, weights: Tensor, step: Step, blocks: Tensor | None
    ) -> Iterator[tuple[RowsOfBand, Tensor]]:
        """(rows of the forward, their scores [rows, N]) in pieces that fit in memory.

        Spans of equal length are scored together, each against its own request's keys.
        """
        for spans, owner in self._buckets(step):
            # A stale plane has rows of its owner's ratio, of which as many are read as this layer has.
            num_keys = max(span.end for span in spans) // self._spec.ratio
            if num_keys == 0:
                continue
            keys = step.view.index_keys(owner, spans, num_keys)
            num_spans, length = len(spans), spans[0].length
            size = max(1, SCORES_PER_BAND // (num_spans * num_keys))
            if num_spans == len(step.view.spans) and length <= size:
                every = (num_spans, length)
                inside = self._inside(keys, None if blocks is None else blocks.unflatten(0, every))
                scores = self._scores(q.unflatten(0, every), inside, weights.unflatten(0, every))
                yield slice(None), scores.flatten(0, 1)
                continue
            rows = torch.tensor([span.offset for span in spans]).unsqueeze(1) + torch.arange(length)
            for first in range(0, length, size):
                band = rows[:, first : first + size]
                inside = self._inside(keys, None if blocks is None else blocks[band])
                yield band.flatten(), self._scores(q[band], inside, weights[band]).flatten(0, 1)

    def _inside(self, keys: Keys, blocks: Tensor | None) -> Keys:
        """Keys that say which of their scores a bounded scorer looks at, where they are enough to leave some out."""
        size = self._config.candidate_block_size
        if blocks is None or not isinstance(keys, PagedRows) or keys.num_rows <= blocks.shape[-1] * size:
            return keys
        return replace(keys, blocks=blocks, block_size=size)

    def _buckets(self, step: Step) -> list[tuple[Sequence[Span], int]]:
        """Spans of equal length, with the owner whose keys they are scored against."""
        assert self._spec.kv_owner is not None
        buckets: dict[tuple[int, int], list[Span]] = {}
        for span in step.view.spans:
            owner = self._spec.kv_owner
            open_pair = span.length == 1 and span.start % 2 == 0
            if self._stale_owner is not None and self._spec.ratio == 2 and open_pair:
                # Profile demo: no group closes, so the owner publishes nothing and the last published plane is read
                # (spec: attention.md section 11.7).
                owner = self._stale_owner
            buckets.setdefault((owner, span.length), []).append(span)
        return [(spans, owner) for (owner, _), spans in buckets.items()]
