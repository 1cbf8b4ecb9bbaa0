"""Stages and runs one step: integers in, logits out.

`stage` turns a plan into tensors: ids, positions, rows of images, and the Engram rows, which depend on token ids and on
where images lie, and are gathered on the host before the forward.  `run` is the forward, which also feeds the draft
stages where there are any; `draft` asks them for tokens.  The runner owns the caches; it knows no request and no
sampling.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from flash41.cache.blocks import DraftView
from flash41.cache.image_store import ImageStore
from flash41.cache.store import Store
from flash41.cache.views import Span
from flash41.checkpoint.row_ahead import RowsAhead
from flash41.engine.image_rows import ImageRows, Mask, image_mask, image_rows, step_mask
from flash41.engine.plan import PlannedSpan, StepPlan
from flash41.engram.hashing import EngramHash, row_ids, windows
from flash41.engram.tables import EngramTable
from flash41.engram.vocabulary import TokenMap
from flash41.model.backbone import Backbone, BackboneOutput
from flash41.model.batch import EngramRows, ForwardBatch, Probe
from flash41.model.draft_heads import Choice, Drafts, most_likely
from flash41.model.drafter import Drafter


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
    """One model, one set of caches; with a drafter the store has rings for its stages."""

    def __init__(
        self,
        backbone: Backbone,
        store: Store,
        tables: Mapping[int, tuple[EngramHash, EngramTable]],
        token_map: TokenMap,
        dtype: torch.dtype,
        guard: Callable[[], None],
        images: ImageStore | None = None,
        drafter: Drafter | None = None,
        ahead: Mapping[int, RowsAhead] | None = None,
    ) -> None:
        self.store = store
        self.images = images
        self._guard = guard
        self._backbone = backbone
        self._drafter = drafter
        self._tables = tables
        self._token_map = token_map
        self._dtype = dtype
        self._ahead = ahead or {}
        self._max_ngram = next(iter(tables.values()))[0].max_ngram if tables else 1

    def stage(self, plan: StepPlan, rows: ImageRows | None = None) -> Staged:
        """Tensors of a plan; nothing of the caches is touched.

        `rows` holds the encoded rows of every image that reaches into the plan; ProtocolError if one is missing.
        """
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
        logit_rows = [
            row
            for span, planned in zip(spans, plan.spans, strict=True)
            for row in range(span.offset + span.length - planned.num_choices, span.offset + span.length)
        ]
        mask = step_mask(plan)
        batch = ForwardBatch(
            ids=torch.tensor([token for planned in plan.spans for token in planned.ids]),
            positions=torch.cat([torch.arange(span.start, span.end) for span in spans]),
            logit_rows=torch.tensor(logit_rows, dtype=torch.int64),
            engram=self._engram(plan, mask),
            image_mask=None if mask is None else torch.from_numpy(mask),
            image_rows=None if mask is None else image_rows(plan, rows or {}),
        )
        return Staged(batch=batch, spans=tuple(spans), plan=plan)

    def foresee(self, spans: Sequence[PlannedSpan]) -> None:
        """Asks for the Engram rows of spans that will be staged later, where those lie in files."""
        if self._ahead and spans:
            self._row_ids(spans)

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
        view = self.store.view(staged.spans)
        output: BackboneOutput = self._backbone(staged.batch, view, probe)
        if self._drafter is not None:
            self._drafter.feed(output.taps, staged.batch.positions, view)
        for move in plan.saves:
            self._arena().save(move.image, move.slot, move.position)
        return output

    def draft(self, anchors: Mapping[int, int], choose: Choice = most_likely, probe: Probe | None = None) -> Drafts:
        """Drafts behind the anchor token of each slot, in the order given; the caches stay as they are.

        An anchor is the token sampled behind the newest position its slot holds.  ProtocolError for an empty slot.
        """
        assert self._drafter is not None, "this runner has no drafter"
        self._guard()
        view = DraftView(self.store, list(anchors), self._drafter.block_size)
        tokens = torch.tensor(list(anchors.values()))
        return self._drafter(tokens, view, choose, probe)  # type: ignore[no-any-return]

    def keep(self, slot: int, position: int) -> None:
        """Takes back what a slot holds from `position` on: drafts that were not accepted."""
        self.store.rewind(slot, position)

    def _arena(self) -> ImageStore:
        assert self.images is not None, "a plan names images, but there is no memory for them"
        return self.images

    def _engram(self, plan: StepPlan, mask: Mask | None) -> dict[int, EngramRows]:
        if not self._tables:
            return {}
        gathered = {}
        for layer_id, ids in self._row_ids(plan.spans).items():
            values = self._tables[layer_id][1].gather(ids, mask, self._dtype)
            gathered[layer_id] = EngramRows(row_ids=torch.from_numpy(ids), values=values)
        return gathered

    def _row_ids(self, spans: Sequence[PlannedSpan]) -> dict[int, np.ndarray]:
        """Rows of every table that the tokens of spans read, asked for where tables lie in files."""
        seen = np.concatenate([self._windows(span) for span in spans])
        found = {layer_id: row_ids(table_hash, seen) for layer_id, (table_hash, _) in self._tables.items()}
        for layer_id, ahead in self._ahead.items():
            ahead.request(found[layer_id])  # of all tables before the first is gathered
        return found

    def _windows(self, span: PlannedSpan) -> np.ndarray:
        compressed = self._token_map.compress(span.history + span.ids, image_mask(span) if span.images else None)
        split = len(span.history)
        return windows(compressed[split:], tuple(compressed[:split].tolist()), self._token_map.pad, self._max_ngram)
