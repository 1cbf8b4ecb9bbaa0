"""Engines whose drafts are what a test wants: right ones, wrong ones, nonsense."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from flash41.config.run import Draft
from flash41.engine.drafting import Forced
from flash41.engine.engine import Engine
from flash41.engine.load import LoadedModel
from flash41.engine.request import Request
from helpers.answers import Tokens, paged_engine

VOCAB = 512


def drafting_engine(model: LoadedModel, forced: Forced | None = None, **values: Any) -> Engine:
    """An engine that drafts, with pages enough for whole blocks unless told otherwise."""
    tested = paged_engine(
        model, **{"longest": 64, "factor": 4, "spare": 40, "rows": 64, "slots": 6, "draft": Draft.ON, **values}
    )
    assert tested.drafting is not None
    tested.drafting.forced = forced
    return tested


def right_drafts(answers: Mapping[int, Tokens], count: Callable[[Request], int]) -> Forced:
    """As many right tokens as `count` says for a request, then a wrong one."""

    def forced(request: Request, drafts: Sequence[int]) -> Sequence[int]:
        rest = [token.token_id for token in answers[request.request_id]][len(request.output_ids) :]
        number = count(request)
        return [*rest[:number], *((token + 1) % VOCAB for token in rest[number : number + 1])][: len(drafts)]

    return forced


def replaced_drafts(tested: Engine, logits: Callable[[Tensor], Tensor]) -> None:
    """Lets a drafter say other logits than its own, and be certain of them."""
    runner: Any = tested.runner
    own = runner.draft

    def draft(anchors: Mapping[int, int], choose: Callable[[int, Tensor], Tensor]) -> Any:
        found = own(anchors)
        replaced = logits(found.logits)
        ids = torch.stack([choose(k, replaced[:, k]) for k in range(replaced.shape[1])], 1)
        return replace(found, ids=ids, logits=replaced, confidence=torch.full_like(found.confidence, 9.0))

    runner.draft = draft
