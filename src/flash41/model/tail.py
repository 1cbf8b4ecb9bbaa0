"""Bounded decoder replay: the layers behind the last owner of a plane read only the end of a prompt.  Approximate.

    rows of the forward    . . . . . . . . . . x x x x       layers up to the last owner: all, and exact
                                       tail_start ^          layers behind it: these, with windows cut at tail_start

Compressed rows and selections made before the cut stay as they are; rows of the forward are renumbered.  Where a step
holds no row of any tail the layers are left out altogether.  spec: cache.md section 9.
"""

from dataclasses import replace

import torch
from torch import Tensor

from flash41.cache.views import BatchView
from flash41.model.batch import ForwardBatch, Selection, Selections, Step


def narrowed(step: Step, view: BatchView, rows: Tensor) -> Step:
    """The step with the rows `rows` only, int64 ascending, whose caches are read through `view`."""
    batch = step.batch
    kept = ForwardBatch(
        ids=batch.ids[rows],
        positions=batch.positions[rows],
        logit_rows=torch.searchsorted(rows, batch.logit_rows),
        engram={},  # no such layer lies behind the cut (rule R14)
        image_mask=None if batch.image_mask is None else batch.image_mask[rows],
    )
    return replace(
        step,
        batch=kept,
        view=view,
        angles={ratio: (cos[rows], sin[rows]) for ratio, (cos, sin) in step.angles.items()},
        visible={ratio: visible[rows] for ratio, visible in step.visible.items()},
    )


def narrowed_selections(selections: Selections, rows: Tensor) -> Selections:
    """What scorers before the cut chose for these rows; lists are joined anew, since windows are others."""
    return Selections(
        by_owner={
            owner: Selection(rows=chosen.rows[rows], width=chosen.width, counts=chosen.counts[rows])
            for owner, chosen in selections.by_owner.items()
        },
        candidates=None if selections.candidates is None else selections.candidates[rows],
    )
