"""A step and its selections with fewer rows: the same values, renumbered."""

from typing import Any

import torch

from flash41.model.batch import ForwardBatch, RowLists, Selection, Selections, Silent, Step
from flash41.model.tail import narrowed, narrowed_selections

ROWS = torch.tensor([1, 4, 5])


def step(image_mask: torch.Tensor | None = None) -> Step:
    numbers = torch.arange(6)
    view: Any = "the whole"
    return Step(
        batch=ForwardBatch(
            ids=10 + numbers,
            positions=20 + numbers,
            logit_rows=torch.tensor([1, 5]),
            engram={},
            image_mask=image_mask,
        ),
        view=view,
        angles={2: (numbers[:, None].float(), -numbers[:, None].float())},
        visible={2: (21 + numbers) // 2},
        most_visible={2: 13},
        probe=Silent(),
    )


def test_a_narrower_step_has_the_values_of_its_rows_and_logits_of_the_same_ones() -> None:
    view: Any = "the tail"
    found = narrowed(step(), view, ROWS)
    assert found.batch.ids.tolist() == [11, 14, 15]
    assert found.batch.positions.tolist() == [21, 24, 25]
    assert found.batch.logit_rows.tolist() == [0, 2]
    assert found.batch.image_mask is None
    assert [part.flatten().tolist() for part in found.angles[2]] == [[1, 4, 5], [-1, -4, -5]]
    assert found.visible[2].tolist() == [11, 12, 13]
    assert found.view == view
    assert found.most_visible == {2: 13}


def test_image_rows_stay_marked() -> None:
    view: Any = "the tail"
    mask = torch.tensor([False, True, False, False, True, False])
    found = narrowed(step(mask), view, ROWS).batch.image_mask
    assert found is not None
    assert found.tolist() == [True, True, False]


def test_selections_keep_their_rows_and_lose_their_lists() -> None:
    chosen = Selection(rows=torch.arange(12).view(6, 2), width=2, counts=torch.arange(6))
    selections = Selections(
        by_owner={3: chosen},
        lists={3: RowLists(index=torch.zeros(6, 3), counts=torch.zeros(6))},
        candidates=torch.arange(6)[:, None],
    )
    found = narrowed_selections(selections, ROWS)
    assert found.by_owner[3].rows.tolist() == [[2, 3], [8, 9], [10, 11]]
    assert (found.by_owner[3].width, found.by_owner[3].counts.tolist()) == (2, [1, 4, 5])
    assert found.lists == {}
    assert found.candidates is not None
    assert found.candidates.tolist() == [[1], [4], [5]]
    assert narrowed_selections(Selections(), ROWS).candidates is None
