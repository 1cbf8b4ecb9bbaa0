"""What messages are made of: plain values that are few where nothing is to be said."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from flash41.engine.events import SampledToken
from flash41.engine.request import FinishReason
from flash41.errors import Flash41Error
from flash41.server.message_values import failure_values, read_failure, read_token, token_values
from flash41.server.service import EngineStoppedError, GeneratedToken, GenerationError

PLAIN = GeneratedToken(token=SampledToken(token_id=5), finish_reason=None)
LOGPROB = GeneratedToken(token=SampledToken(token_id=5, logprob=-0.5, top_logprobs=((5, -0.5),)), finish_reason=None)
DRAFTED = GeneratedToken(
    token=SampledToken(token_id=5), finish_reason=FinishReason.STOP, num_draft_tokens=3, num_accepted_tokens=2
)
UNDRAFTED = GeneratedToken(token=SampledToken(token_id=5), finish_reason=None, undrafted_because="images")


def travelled(item: GeneratedToken, job_id: int = 1) -> Sequence[Any]:
    found: list[Any] = json.loads(json.dumps(token_values(job_id, item)))
    assert found[0] == job_id
    return found[1:]


def test_without_log_probabilities_a_token_is_four_numbers() -> None:
    assert token_values(1, PLAIN) == (1, 5, None, 0)


@pytest.mark.parametrize("item", [LOGPROB, DRAFTED, UNDRAFTED])
def test_what_a_token_has_beside_it_travels_with_it(item: GeneratedToken) -> None:
    assert len(travelled(item)) == 8
    assert read_token(travelled(item)) == item


def test_the_same_token_is_the_same_record_in_every_answer() -> None:
    first, second = (read_token(travelled(PLAIN, job_id)) for job_id in (1, 2))
    assert first == PLAIN
    assert first is second


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (EngineStoppedError("stopped"), GenerationError),
        (FileNotFoundError("gone"), OSError),
        (ZeroDivisionError("by zero"), Flash41Error),
    ],
)
def test_an_error_of_an_unknown_kind_is_the_nearest_known_one(error: Exception, kind: type[Exception]) -> None:
    found = read_failure(*failure_values(error))
    assert (type(found), str(found)) == (kind, str(error))
