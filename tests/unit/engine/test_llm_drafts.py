"""An engine with drafts as users hold it: texts, stop strings, streams and what a completion tells."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from flash41.chat.conversation import Message
from flash41.engine.answers import Completion
from flash41.engine.llm import LLM
from flash41.engine.request import FinishReason, Request, SamplingParams
from flash41.errors import ConfigError

PARAMS = SamplingParams(max_tokens=10, seed=3, logprobs=1)
PROMPT = "Once upon a time"


@pytest.fixture(scope="module")
def drafting(tiny_directory: Path) -> LLM:
    return LLM(tiny_directory, max_model_len=64, draft="on")


def all_right(llm: LLM, answer: Sequence[int]) -> None:
    """Lets the engine verify nothing but right drafts."""

    def forced(request: Request, drafts: Sequence[int]) -> Sequence[int]:
        done = len(request.output_ids)
        return list(answer)[done : done + len(drafts)]

    assert llm.engine.drafting is not None
    llm.engine.drafting.forced = forced


def facts(one: Completion) -> tuple[object, ...]:
    return one.output_ids, one.text, one.reasoning, one.finish_reason, one.logprobs, one.seed


def test_answers_are_those_without_drafts_and_say_what_was_drafted(llm: LLM, drafting: LLM) -> None:
    for params in (PARAMS, SamplingParams(max_tokens=10, temperature=0, seed=3)):
        (plain,), (drafted,) = (one.generate(PROMPT, params) for one in (llm, drafting))
        assert facts(drafted) == facts(plain)
        assert (plain.num_draft_tokens, plain.num_accepted_tokens) == (0, 0)
        assert drafted.num_draft_tokens > drafted.num_accepted_tokens >= 0
        assert drafted.undrafted_because is None
    messages = [Message(role="user", content="hi")]
    assert facts(drafting.chat(messages, PARAMS, thinking=True)) == facts(llm.chat(messages, PARAMS, thinking=True))


def test_a_stop_string_inside_a_block_cuts_text_and_tokens(llm: LLM, drafting: LLM) -> None:
    (whole,) = llm.generate(PROMPT, PARAMS)
    all_right(drafting, whole.output_ids)
    try:
        found = set()
        for start in range(1, len(whole.text) - 2, 2):
            stop = whole.text[start : start + 2]
            (plain,), (drafted,) = (one.generate(PROMPT, PARAMS, stop=stop) for one in (llm, drafting))
            assert facts(drafted) == facts(plain)
            assert drafted.finish_reason is FinishReason.STOP
            found.add(len(drafted.output_ids))
        # The block behind the first token holds tokens 2 to 7.
        assert len(found & {2, 3, 4, 5, 6}) > 1
        assert drafting.engine.num_unfinished == 0
    finally:
        assert drafting.engine.drafting is not None
        drafting.engine.drafting.forced = None


def test_a_stream_gives_a_token_per_event_and_frees_everything_when_closed(llm: LLM, drafting: LLM) -> None:
    (plain,) = llm.generate(PROMPT, PARAMS)
    all_right(drafting, plain.output_ids)
    ids = drafting.encode(PROMPT)
    events = list(drafting.stream(ids, PARAMS))
    assert tuple(event.token for event in events) == plain.logprobs
    assert [event.finish_reason for event in events] == [None] * 9 + [FinishReason.LENGTH]
    stream = drafting.stream(ids, PARAMS)
    next(stream)
    next(stream)
    stream.close()
    assert drafting.engine.num_unfinished == 0
    assert drafting.engine.stats.num_running == 0
    drafting.engine.scheduler.check_integrity()
    assert drafting.engine.drafting is not None
    drafting.engine.drafting.forced = None


def test_names_that_are_none_are_refused(tiny_directory: Path) -> None:
    for values in ({"draft": "maybe"}, {"draft_accept": "most"}, {"draft": "on", "prefix_replay": True}):
        with pytest.raises(ConfigError, match=next(iter(values))):
            LLM(tiny_directory, **values)  # type: ignore[arg-type]


@pytest.mark.parametrize("rule", ["shared-noise", "rejection"])
def test_a_rule_of_acceptance_without_drafts_is_refused(tiny_directory: Path, rule: str) -> None:
    with pytest.raises(ConfigError, match=f"draft: got 'off', expected 'on' or 'adaptive' with draft_accept '{rule}'"):
        LLM(tiny_directory, draft_accept=rule)
