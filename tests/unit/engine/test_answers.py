import pytest

from flash41.chat.conversation import ToolCall
from flash41.engine.answers import Answer
from flash41.engine.events import SampledToken, TokenEvent
from flash41.engine.request import FinishReason, Request, SamplingParams


def answer(logprobs: int | None = None) -> Answer:
    params = SamplingParams(logprobs=logprobs)
    return Answer(Request(request_id=4, prompt_ids=[0, 5], params=params, seed=9, eos_token_id=1))


def take(tested: Answer, token_id: int, reason: FinishReason | None = None) -> SampledToken:
    """What a step does: the scheduler books the token, then its event arrives."""
    token = SampledToken(token_id=token_id)
    tested.request.output_ids.append(token_id)
    tested.request.finish_reason = reason
    tested.take(TokenEvent(request_id=4, token=token, finish_reason=reason))
    return token


def test_an_answer_keeps_its_tokens_and_knows_when_it_is_finished() -> None:
    tested = answer()
    first = take(tested, 7)
    assert not tested.is_finished
    last = take(tested, 8, FinishReason.STOP)
    assert tested.is_finished
    assert tested.tokens == [first, last]


def test_only_the_last_event_of_a_finished_answer_has_a_reason() -> None:
    tested = answer()
    take(tested, 7)
    assert tested.event(0).finish_reason is None
    take(tested, 8, FinishReason.LENGTH)
    assert [tested.event(index).finish_reason for index in range(2)] == [None, FinishReason.LENGTH]
    assert [tested.event(index).token.token_id for index in range(2)] == [7, 8]


def test_a_completion_says_what_was_asked_and_what_came() -> None:
    tested = answer()
    take(tested, 7)
    take(tested, 8, FinishReason.STOP)
    call = ToolCall(id="c", name="f", arguments="{}")
    found = tested.completion("text", "reasons", (call,))
    assert (found.prompt_ids, found.output_ids) == ((0, 5), (7, 8))
    assert (found.text, found.reasoning, found.tool_calls) == ("text", "reasons", (call,))
    assert (found.finish_reason, found.seed, found.logprobs) == (FinishReason.STOP, 9, None)
    assert 0 <= found.timings.first_token_seconds <= found.timings.total_seconds


def test_tokens_are_reported_where_logprobs_were_asked_for() -> None:
    tested = answer(logprobs=0)
    last = take(tested, 7, FinishReason.STOP)
    assert tested.completion("", None).logprobs == (last,)


def test_an_unfinished_answer_is_no_completion() -> None:
    tested = answer()
    take(tested, 7)
    with pytest.raises(AssertionError):
        tested.completion("", None)


def test_a_completion_says_what_came_of_its_drafts_and_why_there_were_none() -> None:
    tested = answer()
    tested.request.num_draft_tokens, tested.request.num_accepted_tokens = 9, 4
    tested.request.undrafted_because = "images in the request"
    take(tested, 8, FinishReason.STOP)
    found = tested.completion("", None)
    assert (found.num_draft_tokens, found.num_accepted_tokens) == (9, 4)
    assert found.undrafted_because == "images in the request"
