"""The engine's attention, reading compressed rows where they lie.

The engine's kernels read window rows and a plane, each where it lies.  Here both are joined to one tensor with a
gradient.  Lists have the same numbers in the same order; everything else is the engine's module.
"""

import torch
from torch import Tensor

from flash41.cache.views import WindowRows
from flash41.config.architecture import AttentionConfig
from flash41.config.topology import LayerSpec
from flash41.kernels.interface import Kernels
from flash41.model.attention import Attention, join
from flash41.model.batch import RowLists, Selections, Step
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
        key = (topk_owner, self._spec.ratio)
        if key not in selections.lists:
            selections.lists[key] = join(
                window, selection, view.main_numbers(owner, selection.rows[:, : selection.width])
            )
        return torch.cat((window.rows, view.plane(owner))), selections.lists[key]
