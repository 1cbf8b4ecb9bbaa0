from typing import Any

import pytest

from flash41.chat.conversation import ChatCodec
from flash41.chat.extras import split
from flash41.chat.protocols import Protocol
from flash41.errors import RequestError

TOOLS = [{"name": "f", "input_schema": {"type": "object"}}]
ASK = {"messages": [{"role": "user", "content": "h"}], "max_tokens": 9, "thinking": {"type": "disabled"}}


@pytest.mark.parametrize(
    ("protocol", "body", "parallel"),
    [
        (Protocol.CHAT, {}, True),
        (Protocol.CHAT, {"parallel_tool_calls": False}, False),
        (Protocol.RESPONSES, {"parallel_tool_calls": False}, False),
        (Protocol.MESSAGES, {"tool_choice": {"type": "auto"}}, True),
        (Protocol.MESSAGES, {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}}, False),
    ],
)
def test_every_protocol_can_ask_for_one_call_only(protocol: Protocol, body: dict[str, Any], parallel: bool) -> None:
    assert split(body, protocol)[1].parallel_tool_calls is parallel


@pytest.mark.parametrize(
    ("protocol", "body", "left", "effort"),
    [
        (Protocol.CHAT, {"reasoning_effort": 7, "a": 1}, {"a": 1}, 7),
        (Protocol.CHAT, {"reasoning_effort": "low"}, {"reasoning_effort": "low"}, None),
        (Protocol.RESPONSES, {"reasoning": {"effort": 7, "b": 2}}, {"reasoning": {"b": 2}}, 7),
        (Protocol.RESPONSES, {"reasoning": None}, {"reasoning": None}, None),
        (Protocol.MESSAGES, {"output_config": {"effort": 100}}, {"output_config": {}}, 100),
    ],
)
def test_a_number_is_taken_out_of_its_place(
    protocol: Protocol, body: dict[str, Any], left: dict[str, Any], effort: int | None
) -> None:
    given = dict(body)
    found, extras = split(body, protocol)
    assert (found, extras.edits.effort) == (left, effort)
    assert body == given, "the caller's body stays as it is"


@pytest.mark.parametrize("effort", [0, 101, True, 1.5, {}, []])
def test_an_effort_that_is_no_number_from_1_to_100_is_refused(effort: object) -> None:
    with pytest.raises(RequestError, match="from 1 to 100"):
        split({"reasoning_effort": effort}, Protocol.CHAT)


def test_any_tool_in_messages_is_the_one_tool_there_is(small_codec: ChatCodec) -> None:
    asked = {**ASK, "tools": TOOLS, "tool_choice": {"type": "any"}}
    conversation = small_codec.convert(asked, protocol=Protocol.MESSAGES)
    assert conversation.request.conversation.tool_choice == "required"
    assert small_codec.render(conversation).text.endswith("<｜DSML｜ calls>\n")


@pytest.mark.parametrize("tools", [[], None, [*TOOLS, {"name": "g", "input_schema": {}}], "f", [5]])
def test_any_of_several_tools_is_refused_rather_than_not_enforced(small_codec: ChatCodec, tools: object) -> None:
    with pytest.raises(RequestError, match="exactly one"):
        small_codec.convert({**ASK, "tools": tools, "tool_choice": {"type": "any"}}, protocol=Protocol.MESSAGES)


def test_any_tool_is_refused_while_thinking(small_codec: ChatCodec) -> None:
    asked = {**ASK, "thinking": {"type": "enabled"}, "tools": TOOLS, "tool_choice": {"type": "any"}}
    with pytest.raises(RequestError, match="Thinking mode does not support"):
        small_codec.convert(asked, protocol=Protocol.MESSAGES)


@pytest.mark.parametrize("protocol", [Protocol.RESPONSES, Protocol.MESSAGES])
def test_other_protocols_refuse_a_context(small_codec: ChatCodec, protocol: Protocol) -> None:
    body = {**ASK, "input": "h", "context": [{"role": "user", "content": "x"}]}
    with pytest.raises(RequestError, match="only Chat Completions"):
        small_codec.convert(body, protocol=protocol)
    small_codec.convert({**body, "context": None}, protocol=protocol)
