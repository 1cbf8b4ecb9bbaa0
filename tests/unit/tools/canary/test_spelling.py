"""A right answer is spelled as the codec renders it once it was given."""

import json

import pytest

from flash41.engine.llm import LLM
from flash41.engine.request import SamplingParams
from flash41.tools.canary.conversations import Question, read_set
from flash41.tools.canary.spelling import spelled

OF_TEXT = sorted({one.family for one in read_set().questions if not one.shows_pictures})


def history(llm: LLM, question: Question) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Ids of the question, and of the same conversation one turn on."""
    answer = dict(question.answer)
    answer.pop("reasoning_content", None)  # a history without tools has none
    results = [{"role": "tool", "content": "x", "tool_call_id": call["id"]} for call in answer.get("tool_calls", ())]
    body = {**question.body, "thinking": {"type": "disabled"}}
    later = {**body, "messages": [*body["messages"], answer, *results, {"role": "user", "content": "And?"}]}
    codec = llm.codec
    return codec.encode(codec.convert(body)).ids, codec.encode(codec.convert(later)).ids


@pytest.mark.parametrize("family", OF_TEXT)
def test_an_answer_is_what_the_codec_makes_of_it_in_a_history(family: str, llm: LLM) -> None:
    for question in read_set().chosen([family], 12):
        content = {key: value for key, value in question.answer.items() if key != "reasoning_content"}
        asked, later = history(llm, question)
        expected = spelled(llm.codec, content, llm.config.tokens.eos)
        assert later[: len(asked)] == asked
        assert later[len(asked) : len(asked) + len(expected)] == expected


def test_reasoning_comes_first_and_is_closed(llm: LLM) -> None:
    codec, eos = llm.codec, llm.config.tokens.eos
    found = spelled(codec, {"content": "4", "reasoning_content": "2 + 2"}, eos)
    plain = spelled(codec, {"content": "4"}, eos)
    end = codec.tokenizer.id_of("</think>")
    assert found == (*codec.tokenizer.encode("2 + 2"), end, *plain)
    assert plain[-1] == eos


def test_what_a_parser_reads_from_a_spelled_call_is_the_call(llm: LLM) -> None:
    calls = [one for one in read_set().chosen(["tools"]) if one.answer.get("tool_calls")]
    kinds = set()
    for question in calls:
        watcher = llm.chat_watcher(SamplingParams(), llm.codec.convert(question.body))
        for token in spelled(llm.codec, question.answer, llm.config.tokens.eos):
            watcher.push(token)
        parsed = watcher.finish("stop")
        (call,) = parsed.tool_calls
        wanted = question.answer["tool_calls"][0]["function"]
        assert (call.name, json.loads(call.arguments)) == (wanted["name"], json.loads(wanted["arguments"]))
        assert (parsed.content, parsed.reasoning or None) == ("", question.answer.get("reasoning_content"))
        kinds.add(call.name)
    assert len(kinds) > 1
