from collections.abc import Mapping
from typing import Any

import pytest

from flash41.chat.conversation import ChatCodec
from flash41.chat.parsing import EngineFinish
from flash41.chat.watching import ChatWatcher, ParsedAnswer
from flash41.errors import RequestError
from helpers.tiny_tokenizer import TINY_IMAGE_ID, TINY_TOKENIZER

EOS = 1
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
CALLS = (
    '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="f">\n<｜DSML｜parameter name="a" string="true">b STOP'
    '</｜DSML｜parameter>\n</｜DSML｜invoke>\n<｜DSML｜invoke name="g">\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>'
)


@pytest.fixture(scope="module")
def codec() -> ChatCodec:
    return ChatCodec.from_directory(TINY_TOKENIZER, TINY_IMAGE_ID)


def answered(
    codec: ChatCodec, text: str, body: Mapping[str, Any], reason: EngineFinish = "stop"
) -> tuple[ParsedAnswer, int]:
    """The parsed answer and the number of ids until it stopped."""
    conversation = codec.convert({"messages": [{"role": "user", "content": "hi"}], **body})
    watcher, ids = ChatWatcher(codec, conversation, EOS), [*codec.tokenizer.encode_with_control(text), EOS]
    count = next((number for number, token_id in enumerate(ids, 1) if watcher.push(token_id)), len(ids))
    return watcher.finish(reason), count


def test_reasoning_and_content_are_told_apart_and_counted(codec: ChatCodec) -> None:
    parsed, count = answered(codec, "one two</think>three", {})
    assert (parsed.reasoning, parsed.content, parsed.finish_reason) == ("one two", "three", "stop")
    assert parsed.num_reasoning_tokens == len(codec.tokenizer.encode("one two")) + 1
    assert count == len(codec.tokenizer.encode_with_control("one two</think>three")) + 1


def test_a_chat_without_thinking_has_no_reasoning_tokens(codec: ChatCodec) -> None:
    parsed, _ = answered(codec, "one two", {"thinking": {"type": "disabled"}})
    assert (parsed.reasoning, parsed.content, parsed.num_reasoning_tokens) == ("", "one two", 0)


def test_an_answer_cut_off_says_length(codec: ChatCodec) -> None:
    assert answered(codec, "one", {}, "length")[0].finish_reason == "length"


def test_a_stop_string_ends_the_content_and_stays_in_the_reasoning(codec: ChatCodec) -> None:
    parsed, count = answered(codec, "a STOP b</think>c STOP d", {"stop": "STOP"}, "length")
    assert (parsed.reasoning, parsed.content, parsed.finish_reason) == ("a STOP b", "c ", "stop")
    assert count < len(codec.tokenizer.encode_with_control("a STOP b</think>c STOP d"))


def test_calls_are_delivered_with_their_arguments(codec: ChatCodec) -> None:
    parsed, _ = answered(codec, f"why</think>so\n\n{CALLS}", {"tools": [TOOL], "stop": ["STOP"]})
    assert [(call.name, call.arguments) for call in parsed.tool_calls] == [("f", '{"a": "b STOP"}'), ("g", "{}")]
    assert len({call.id for call in parsed.tool_calls}) == 2
    assert (parsed.content, parsed.finish_reason) == ("so", "tool_calls")


def test_a_number_too_large_for_the_codec_is_refused(codec: ChatCodec) -> None:
    with pytest.raises(RequestError, match="range"):
        codec.convert({"messages": [{"role": "user", "content": "hi"}], "seed": 2**70})
