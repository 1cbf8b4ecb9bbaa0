"""A sampler that chooses what a test wants, in place of `sample_step`."""

from collections.abc import Callable, Sequence

from torch import Tensor

from flash41.engine.events import SampledToken
from flash41.engine.request import Request

SAMPLER = "flash41.engine.engine.sample_step"
"""What a test replaces."""


def scripted(*token_ids: int) -> Callable[[Tensor, Sequence[Request]], dict[int, SampledToken]]:
    """One of `token_ids` after the other, for whichever request is next."""
    left = list(token_ids)

    def sample_step(logits: Tensor, requests: Sequence[Request]) -> dict[int, SampledToken]:
        assert len(logits) == len(requests), (len(logits), len(requests))
        return {request.request_id: SampledToken(token_id=left.pop(0)) for request in requests}

    return sample_step
