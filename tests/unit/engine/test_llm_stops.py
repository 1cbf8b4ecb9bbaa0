import pytest

from flash41.chat.conversation import Message
from flash41.engine.llm import LLM
from flash41.engine.request import FinishReason, SamplingParams
from flash41.errors import RequestError
from helpers.scripted import SAMPLER, scripted

PARAMS = SamplingParams(max_tokens=8, seed=3, ignore_eos=True)
HELLO = [Message(role="user", content="hi")]


def test_a_stop_string_ends_a_raw_answer_early(llm: LLM) -> None:
    (whole,) = llm.generate("Once upon a time", PARAMS)
    assert whole.finish_reason is FinishReason.LENGTH
    stop = whole.text[3:5]
    (cut,) = llm.generate("Once upon a time", PARAMS, stop=stop)
    assert cut.text == whole.text[: whole.text.index(stop)]
    assert cut.finish_reason is FinishReason.STOP
    assert cut.output_ids == whole.output_ids[: len(cut.output_ids)]
    assert len(cut.output_ids) < len(whole.output_ids)


def test_each_of_many_answers_has_a_watcher_of_its_own(llm: LLM) -> None:
    prompts = ("Once", "upon", "a time")
    whole = [answer.text for answer in llm.generate(prompts, PARAMS)]
    stop = whole[1][2:4]
    expected = [text.split(stop)[0] for text in whole]
    assert [answer.text for answer in llm.generate(prompts, PARAMS, stop=[stop])] == expected


def test_a_stop_string_of_a_chat_is_sought_in_the_content_only(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = llm.tokenizer.encode_with_control("a.b</think>c.d")
    monkeypatch.setattr(SAMPLER, scripted(*ids))
    answer = llm.chat(HELLO, thinking=True, stop=["."])
    assert (answer.reasoning, answer.text, answer.finish_reason) == ("a.b", "c", FinishReason.STOP)
    assert len(answer.output_ids) < len(ids)
    assert llm.engine.num_unfinished == 0


def test_a_stream_ends_with_the_token_that_completes_a_stop_string(llm: LLM) -> None:
    ids = llm.encode("Once upon a time")
    whole = [event.token.token_id for event in llm.stream(ids, PARAMS)]
    stop = llm.tokenizer.decode(whole)[3:5]
    events = list(llm.stream(ids, PARAMS, stop=stop))
    assert events[-1].finish_reason is FinishReason.STOP
    found = [event.token.token_id for event in events]
    assert found == whole[: len(found)]
    assert stop in llm.tokenizer.decode(found)
    assert stop not in llm.tokenizer.decode(found[:-1])


@pytest.mark.parametrize("stop", ["", [""], ["a"] * 17], ids=["empty", "one empty", "seventeen"])
def test_stop_strings_that_cannot_be_are_refused_everywhere(llm: LLM, stop: str | list[str]) -> None:
    for refused in (
        lambda: llm.generate("a", PARAMS, stop=stop),
        lambda: llm.chat(HELLO, PARAMS, stop=stop),
        lambda: llm.stream((5,), PARAMS, stop=stop),
    ):
        with pytest.raises(RequestError, match="stop"):
            refused()
