"""Stages and runs one step: integers in, logits out.

`stage` turns a plan into tensors: ids, positions, and the Engram rows, which depend on token ids only and are gathered
on the host before the forward.  `run` is the forward.  The runner owns the caches; it knows no request and no sampling.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from flash41.cache.image_store import ImageStore
from flash41.cache.store import Store
from flash41.cache.views import Span
from flash41.engine.plan import StepPlan
from flash41.engram.hashing import EngramHash, row_ids, windows
from flash41.engram.tables import EngramTable
from flash41.engram.vocabulary import TokenMap
from flash41.model.backbone import Backbone, BackboneOutput
from flash41.model.batch import EngramRows, ForwardBatch, Probe


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """A step ready to run."""

    batch: ForwardBatch
    spans: tuple[Span, ...]
    plan: StepPlan
    """What was planned: pages of the spans, images to restore and to save."""

    def all_logits(self) -> "Staged":
        """The same step with the logits of every row."""
        return replace(self, batch=replace(self.batch, logit_rows=torch.arange(len(self.batch.ids))))


class Runner:
    """One model, one set of caches."""

    def __init__(
        self,
        backbone: Backbone,
        store: Store,
        tables: Mapping[int, tuple[EngramHash, EngramTable]],
        token_map: TokenMap,
        dtype: torch.dtype,
        guard: Callable[[], None],
        images: ImageStore | None = None,
    ) -> None:
        self.store = store
        self.images = images
        self._guard = guard
        self._backbone = backbone
        self._tables = tables
        self._token_map = token_map
        self._dtype = dtype
        self._max_ngram = next(iter(tables.values()))[0].max_ngram if tables else 1

    def stage(self, plan: StepPlan) -> Staged:
        """Tensors of a plan; nothing of the caches is touched."""
        self._guard()  # a mapped file that shrank would kill the process when its rows are gathered
        spans, offset = [], 0
        for planned in plan.spans:
            spans.append(
                Span(
                    slot=planned.slot,
                    start=planned.start,
                    length=len(planned.ids),
                    offset=offset,
                    window_start=planned.window_start,
                    planes_end=planned.planes_end,
                    tail_start=planned.tail_start,
                )
            )
            offset += len(planned.ids)
        logit_rows = [span.offset + span.length - 1 for span, p in zip(spans, plan.spans, strict=True) if p.samples]
        batch = ForwardBatch(
            ids=torch.tensor([token for planned in plan.spans for token in planned.ids]),
            positions=torch.cat([torch.arange(span.start, span.end) for span in spans]),
            logit_rows=torch.tensor(logit_rows, dtype=torch.int64),
            engram=self._engram(plan),
        )
        return Staged(batch=batch, spans=tuple(spans), plan=plan)

    def run(self, staged: Staged, probe: Probe | None = None) -> BackboneOutput:
        """The forward; afterwards the caches hold the step's rows, and images what the plan wants kept."""
        self._guard()  # again, as a step may be staged long before it runs: changed files are no wrong numbers
        plan = staged.plan
        for span in plan.spans:
            if span.start == span.window_start:
                self.store.reset(span.slot, span.start)
        for move in plan.restores:
            self._arena().restore(move.image, move.slot, move.position, move.request_id)
        for span in plan.spans:
            self.store.assign(span.slot, span.pages)
        output: BackboneOutput = self._backbone(staged.batch, self.store.view(staged.spans), probe)
        for move in plan.saves:
            self._arena().save(move.image, move.slot, move.position)
        return output

    def _arena(self) -> ImageStore:
        assert self.images is not None, "a plan names images, but there is no memory for them"
        return self.images

    def _engram(self, plan: StepPlan) -> dict[int, EngramRows]:
        if not self._tables:
            return {}
        seen = np.concatenate([self._windows(span.ids, span.history) for span in plan.spans])
        gathered = {}
        for layer_id, (table_hash, table) in self._tables.items():
            ids = row_ids(table_hash, seen)
            values: Tensor = table.gather(ids).to(self._dtype)
            gathered[layer_id] = EngramRows(row_ids=torch.from_numpy(ids), values=values)
        return gathered

    def _windows(self, ids: tuple[int, ...], history: tuple[int, ...]) -> np.ndarray:
        compressed = self._token_map.compress(history + ids)
        split = len(history)
        return windows(compressed[split:], tuple(compressed[:split].tolist()), self._token_map.pad, self._max_ngram)
