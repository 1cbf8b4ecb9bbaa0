"""The engine's attention, reading compressed rows where they lie.

The engine gathers the selected rows of every query and joins them to the window rows.  Over whole sequences that would
copy each row many times, so here a list names rows of one stack, the layer's window rows and then the whole plane.
Lists have the same rows in the same order; everything else is the engine's module.
"""

import torch
from torch import Tensor
from torch.nn.functional import pad

from flash41.cache.views import WindowRows
from flash41.config.architecture import AttentionConfig
from flash41.config.topology import LayerSpec
from flash41.kernels.interface import Kernels
from flash41.model.attention import Attention
from flash41.model.batch import RowLists, Selection, Selections, Step
from flash41.model.indexer import Indexer
from flash41.model.rope import Rope
from flash41.model.rounding import Roundings
from training.model.tape import Tape
from training.model.view import WholeView


class WholeAttention(Attention):
    """Takes the place of an `Attention`; `source` is the candidate source's layer id."""

    def __init__(
        self,
        built: Attention,
        spec: LayerSpec,
        name: str,
        config: AttentionConfig,
        *,
        source: int | None,
        tape: Tape,
        rope: Rope,
        roundings: Roundings,
        kernels: Kernels,
    ) -> None:
        super().__init__(
            spec,
            name,
            config,
            wq_a=built.wq_a,
            q_norm=built.q_norm,
            wq_b=built.wq_b,
            wkv=built.wkv,
            kv_norm=built.kv_norm,
            attn_sink=built.attn_sink,
            wo_a=built.wo_a,
            wo_b=built.wo_b,
            compressor=built.compressor,
            indexer=built.indexer,
            rope=rope,
            roundings=roundings,
            kernels=kernels,
        )
        self._source = source
        self._tape = tape

    def _score(
        self,
        indexer: Indexer,
        x: Tensor,
        heads: Tensor | None,
        window: WindowRows,  # noqa: ARG002
        step: Step,
        selections: Selections,
    ) -> None:
        assert heads is not None, "a scorer projects its index heads beside its query"
        if not self._tape.scoring:
            return
        bounded = self._spec.bounded_by_candidates
        self._tape.scores(self._spec.layer_id, self._source if bounded else None)
        selections.by_owner[self._spec.layer_id] = indexer(x, heads, step, selections)

    def _rows(self, window: WindowRows, step: Step, selections: Selections) -> tuple[Tensor, RowLists]:
        owner, topk_owner = self._spec.kv_owner, self._spec.topk_owner
        everything = self._tape.layout is not None
        if owner is None or topk_owner is None or not (everything or selections.by_owner[topk_owner].width):
            self._tape.reads(None, None)
            return window.rows, RowLists(index=window.index, counts=window.counts)
        bounded = self._source is not None and topk_owner > self._source
        view = step.view
        assert isinstance(view, WholeView), "compressed rows are read from whole sequences"
        self._tape.reads(topk_owner, self._source if bounded else None)
        self._tape.block(None if bounded else self._spec.ratio)
        if everything:  # lists would name what `dense` knows
            unused = RowLists(index=window.index, counts=window.counts)
            return torch.cat((window.rows, view.plane(owner))), unused
        selection = selections.by_owner[topk_owner]
        if topk_owner not in selections.lists:
            starts = len(window.rows) + view.plane_starts(owner)
            selections.lists[topk_owner] = joined(window, selection, starts)
        return torch.cat((window.rows, view.plane(owner))), selections.lists[topk_owner]


def joined(window: WindowRows, selection: Selection, starts: Tensor) -> RowLists:
    """Lists of window rows with the selected rows appended; `starts` int64 [T] is row 0 of each query's plane."""
    width = selection.width
    slot = torch.arange(window.index.shape[1] + width) - window.counts.unsqueeze(1)
    chosen = selection.rows[:, :width].gather(1, slot.clamp(min=0, max=width - 1)).clamp(min=0)
    index = torch.where(slot < 0, pad(window.index, (0, width)), starts.unsqueeze(1) + chosen)
    return RowLists(index=index, counts=window.counts + selection.counts)
