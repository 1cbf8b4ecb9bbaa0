from collections.abc import Sequence
from typing import Any

import pytest

from flash41.engine.request import FinishReason, Request, SamplingParams
from flash41.errors import RequestError

EOS = 1
NAN = float("nan")


class Recorder:
    """A stop watcher that ends the answer with a given token."""

    def __init__(self, last: int) -> None:
        self.seen: list[int] = []
        self._last = last

    def push(self, token_id: int) -> bool:
        self.seen.append(token_id)
        return token_id == self._last


def finish(
    params: SamplingParams, outputs: Sequence[int], watcher: Recorder | None = None
) -> list[FinishReason | None]:
    """What each token of an answer leads to."""
    request = Request(request_id=0, prompt_ids=(0, 5), params=params, seed=0, eos_token_id=EOS, stop_watcher=watcher)
    reasons = []
    for token_id in outputs:
        request.output_ids.append(token_id)
        reasons.append(request.finished_by(token_id))
    return reasons


def test_the_defaults_sample_the_model_as_it_is() -> None:
    params = SamplingParams()
    assert (params.temperature, params.top_p, params.top_k, params.min_p) == (1.0, 1.0, None, 0.0)
    assert (params.repetition_penalty, params.presence_penalty, params.frequency_penalty) == (1.0, 0.0, 0.0)
    assert params.seed is None
    assert params.logprobs is None


@pytest.mark.parametrize(
    "values",
    [
        {"temperature": 0},
        {"temperature": 2},
        {"top_p": 1},
        {"top_p": 1e-9},
        {"top_k": 1},
        {"min_p": 1},
        {"seed": 0},
        {"seed": 2**63 - 1},
        {"logprobs": 0},
        {"logprobs": 20},
        {"max_tokens": 1},
        {"max_tokens": 393_216},
        {"logit_bias": {0: -100, 7: 100.0}},
        {"stop_token_ids": (0, 129_279)},
        {"presence_penalty": -2, "frequency_penalty": 2},
        {"repetition_penalty": 2},
    ],
)
def test_values_at_their_limits_are_accepted(values: dict[str, Any]) -> None:
    SamplingParams(**values)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"temperature": -0.1}, r"temperature: got -0.1, expected a number from 0 to 2"),
        ({"temperature": 2.1}, r"temperature: got 2.1"),
        ({"temperature": NAN}, r"temperature: got nan"),
        ({"temperature": float("inf")}, r"temperature: got inf"),
        ({"temperature": True}, r"temperature: got True"),
        ({"temperature": "1"}, r"temperature: got '1'"),
        ({"top_p": 0}, r"top_p: got 0, expected a number above 0 to 1"),
        ({"top_p": 1.5}, r"top_p: got 1.5"),
        ({"top_p": NAN}, r"top_p: got nan"),
        ({"top_k": 0}, r"top_k: got 0, expected an integer of at least 1"),
        ({"top_k": 2.0}, r"top_k: got 2.0"),
        ({"min_p": -1}, r"min_p: got -1"),
        ({"min_p": 1.01}, r"min_p: got 1.01"),
        ({"seed": -1}, r"seed: got -1, expected an integer from 0 to 9223372036854775807"),
        ({"seed": 2**63}, r"seed: got 9223372036854775808"),
        ({"seed": True}, r"seed: got True"),
        ({"seed": 1.0}, r"seed: got 1.0"),
        ({"max_tokens": 0}, r"max_tokens: got 0"),
        ({"max_tokens": True}, r"max_tokens: got True"),
        ({"logprobs": 21}, r"logprobs: got 21, expected an integer from 0 to 20"),
        ({"logprobs": False}, r"logprobs: got False"),
        ({"repetition_penalty": 0}, r"repetition_penalty: got 0, expected a number above 0 to 2"),
        ({"presence_penalty": 2.5}, r"presence_penalty: got 2.5"),
        ({"frequency_penalty": NAN}, r"frequency_penalty: got nan"),
        ({"stop_token_ids": (3, -1)}, r"stop_token_ids: got -1"),
        ({"logit_bias": {-1: 0.0}}, r"logit_bias token: got -1"),
        ({"stop_token_ids": 5}, r"stop_token_ids: got 5, expected a list or tuple of token ids"),
        ({"logit_bias": None}, r"logit_bias: got None, expected a mapping of token ids"),
        ({"logit_bias": {3: 101}}, r"logit_bias\[3\]: got 101, expected a number from -100 to 100"),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(values: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=f"^{message}"):
        SamplingParams(**values)


def test_all_faults_are_named_together() -> None:
    with pytest.raises(RequestError) as caught:
        SamplingParams(temperature=3, top_p=0, seed=-1)
    text = str(caught.value)
    assert text.startswith("sampling parameters: 3 faults\n")
    assert all(name in text for name in ("1. temperature: got 3", "2. top_p: got 0", "3. seed: got -1"))


def test_an_answer_ends_with_eos_unless_told_to_ignore_it() -> None:
    assert finish(SamplingParams(), [7, EOS]) == [None, FinishReason.STOP]
    assert finish(SamplingParams(ignore_eos=True), [7, EOS, 8]) == [None, None, None]


def test_an_answer_ends_with_a_stop_token() -> None:
    assert finish(SamplingParams(stop_token_ids=(9, 4), ignore_eos=True), [EOS, 4]) == [None, FinishReason.STOP]


def test_an_answer_ends_at_its_length() -> None:
    assert finish(SamplingParams(max_tokens=2), [7, 8]) == [None, FinishReason.LENGTH]


def test_stopping_at_the_last_token_counts_as_stopping() -> None:
    assert finish(SamplingParams(max_tokens=2), [7, EOS]) == [None, FinishReason.STOP]
    assert finish(SamplingParams(max_tokens=1), [6], Recorder(6)) == [FinishReason.STOP]


def test_a_watcher_sees_every_token_once_and_may_end_the_answer() -> None:
    watcher = Recorder(last=6)
    assert finish(SamplingParams(), [7, 8, 6], watcher) == [None, None, FinishReason.STOP]
    assert watcher.seen == [7, 8, 6]


def test_requests_do_not_share_their_outputs() -> None:
    first, second = (
        Request(request_id=n, prompt_ids=(0,), params=SamplingParams(), seed=0, eos_token_id=EOS) for n in range(2)
    )
    first.output_ids.append(3)
    assert second.output_ids == []
