"""Modules of a model that do less than the ones they stand for, and views that show less.

Each wraps a module of an open model and leaves its parameters where they are.
"""

from typing import Any, cast

import torch
from torch import Tensor, nn

from flash41.cache.views import BatchView, Rows, WindowRows
from flash41.model.batch import Selection, Selections, Step


class OwnRow:
    """A batch's view whose windows end where they begin: every query sees its own row only."""

    def __init__(self, inner: BatchView) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def window(self, layer_id: int, rows: Rows) -> WindowRows:
        """The last of the rows that a query would see, which is its own."""
        whole = self._inner.window(layer_id, rows)
        own = whole.index.gather(1, whole.counts.unsqueeze(1) - 1)
        return WindowRows(rows=whole.rows, index=own, counts=torch.ones_like(whole.counts))


class WithoutWindow(nn.Module):
    """Attention whose window holds the query's own row."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor, step: Step, selections: Selections) -> Tensor:
        """As the inner one, through a narrower view."""
        narrow = Step(
            batch=step.batch,
            view=cast(BatchView, OwnRow(step.view)),
            angles=step.angles,
            visible=step.visible,
            most_visible=step.most_visible,
            probe=step.probe,
        )
        return cast(Tensor, self.inner(x, narrow, selections))


class Scorer(nn.Module):
    """An indexer whose projection and keys are those of another one."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.wq_b, self.key = inner.wq_b, inner.key


class SelectsNothing(Scorer):
    """Chooses no compressed row."""

    def forward(self, x: Tensor, _heads: Tensor, _step: Step, _selections: Selections) -> Selection:
        """An empty selection for every row of x [T, D]."""
        return Selection(rows=torch.full((len(x), 1), -1), width=0, counts=torch.zeros(len(x), dtype=torch.int64))


class SelectsWhatTheSourceDid(Scorer):
    """Chooses the rows that the candidate source chose, as if its blocks held no others."""

    def __init__(self, inner: Any, source: int) -> None:
        super().__init__(inner)
        self._source = source

    def forward(self, _x: Tensor, _heads: Tensor, _step: Step, selections: Selections) -> Selection:
        """The source's selection of this forward."""
        return selections.by_owner[self._source]


class BlankTokens(nn.Module):
    """An aligner that shows nothing: as many image tokens, all zero."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner, self.ratio = inner, inner.ratio

    def forward(self, x: Tensor, grid: Any) -> Tensor:
        """[rows * columns, D] of zeros."""
        return torch.zeros_like(self.inner(x, grid))
