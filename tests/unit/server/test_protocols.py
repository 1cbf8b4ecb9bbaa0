"""POST /v1/responses and /v1/messages over a scripted service, and what holds across all three protocols."""

import json
from typing import Any

import pytest

from flash41.chat.conversation import ChatCodec
from helpers.serving import CHAT, HELLO, MESSAGES, RESPONSES, Scripted

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
CALL = (
    "think</think>Look.\n\n<｜DSML｜ calls>\n"
    '<｜DSML｜ invoke name="get_weather">\n<｜DSML｜ parameter name="city" string="true">Paris</｜DSML｜ parameter>\n'
    "</｜DSML｜ invoke>\n</｜DSML｜ calls>"
)
OFF = {"thinking": {"type": "disabled"}}


def text_of(events: list[tuple[str | None, Any]], name: str, field: str = "delta") -> str:
    return "".join(data[field] for event, data in events if event == name)


def test_messages_streams_blocks_in_order(codec: ChatCodec) -> None:
    reply = Scripted(codec, CALL).post(
        MESSAGES,
        {**HELLO, "max_tokens": 500, "stream": True, "tools": [{"name": "get_weather", "input_schema": SCHEMA}]},
    )
    names = [name for name, _ in reply.events]
    assert names[0] == "message_start"
    assert names[-2:] == ["message_delta", "message_stop"]
    blocks = [data["content_block"]["type"] for name, data in reply.events if name == "content_block_start"]
    assert blocks == ["thinking", "text", "tool_use"]
    deltas = [data["delta"] for name, data in reply.events if name == "content_block_delta"]
    joined = "".join(delta["partial_json"] for delta in deltas if delta["type"] == "input_json_delta")
    assert json.loads(joined) == {"city": "Paris"}
    end = reply.events[-2][1]
    assert end["delta"]["stop_reason"] == "tool_use"
    assert end["usage"]["output_tokens"] == len(codec.tokenizer.encode_with_control(CALL)) + 1


def test_messages_answers_whole(codec: ChatCodec) -> None:
    found = Scripted(codec).post(MESSAGES, {**HELLO, "max_tokens": 500}).json
    assert found["id"].startswith("msg_")
    assert found["type"] == "message"
    thinking, text = found["content"]
    assert (thinking["type"], thinking["thinking"], thinking["signature"]) == ("thinking", "because", found["id"])
    assert text == {"type": "text", "text": "Hi there"}
    assert found["stop_reason"] == "end_turn"


def test_messages_names_the_stop_sequence(codec: ChatCodec) -> None:
    found = Scripted(codec, "r</think>one END").post(MESSAGES, {**HELLO, "max_tokens": 99, "stop_sequences": ["END"]})
    assert (found.json["stop_reason"], found.json["stop_sequence"]) == ("stop_sequence", "END")
    assert found.json["content"][-1]["text"] == "one "


def test_messages_honours_the_effort(codec: ChatCodec) -> None:
    scripted = Scripted(codec)
    for effort, number in (("low", 50), ("max", 100), (12, 12)):
        scripted.post(MESSAGES, {**HELLO, "max_tokens": 9, "output_config": {"effort": effort}})
        assert f"Reasoning Effort: {number} (" in codec.tokenizer.decode(scripted.service.jobs[-1].prompt_ids)


def test_count_tokens_counts_the_prompt(codec: ChatCodec) -> None:
    scripted = Scripted(codec)
    body = {**HELLO, "system": "Be brief."}
    scripted.post(MESSAGES, {**body, "max_tokens": 9})
    counted = scripted.post(f"{MESSAGES}/count_tokens", body).json
    assert counted == {"input_tokens": len(scripted.service.jobs[0].prompt_ids)}


def test_responses_streams_numbered_events(codec: ChatCodec) -> None:
    reply = Scripted(codec).post(RESPONSES, {"input": "hello", "stream": True})
    events = reply.events
    assert [data["sequence_number"] for _, data in events] == list(range(len(events)))
    assert all(name == data["type"] for name, data in events)
    assert text_of(events, "response.reasoning_text.delta") == "because"
    assert text_of(events, "response.output_text.delta") == "Hi there"
    assert events[0][0] == "response.created"
    name, last = events[-1]
    assert name == "response.completed"
    usage = last["response"]["usage"]
    assert usage["output_tokens"] == len(codec.tokenizer.encode_with_control("because</think>Hi there")) + 1
    assert usage["output_tokens_details"]["reasoning_tokens"] == len(codec.tokenizer.encode("because"))
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]


def test_responses_answers_whole_and_repeats_the_settings(codec: ChatCodec) -> None:
    body = {"input": "hello", "instructions": "Be brief.", "max_output_tokens": 99, "temperature": 0.5}
    found = Scripted(codec).post(RESPONSES, body).json
    assert found["id"].startswith("resp_")
    assert found["status"] == "completed"
    assert [item["type"] for item in found["output"]] == ["reasoning", "message"]
    assert found["output"][1]["content"][0]["text"] == "Hi there"
    assert (found["instructions"], found["temperature"], found["max_output_tokens"]) == ("Be brief.", 0.5, 99)


def test_responses_calls_tools_by_their_own_names(codec: ChatCodec) -> None:
    tool = {"type": "function", "name": "get_weather", "parameters": SCHEMA}
    found = Scripted(codec, CALL).post(RESPONSES, {"input": "hello", "tools": [tool]}).json
    (call,) = [item for item in found["output"] if item["type"] == "function_call"]
    assert call["name"] == "get_weather"
    assert json.loads(call["arguments"]) == {"city": "Paris"}


@pytest.mark.parametrize("field", ["previous_response_id", "conversation", "background"])
def test_responses_keeps_nothing_between_requests(codec: ChatCodec, field: str) -> None:
    reply = Scripted(codec).post(RESPONSES, {"input": "hello", field: "resp_1"})
    assert reply.status == 400
    assert field in reply.json["error"]["message"]


def test_a_conversation_has_the_same_prompt_in_every_protocol(codec: ChatCodec) -> None:
    scripted = Scripted(codec)
    arguments = json.dumps({"city": "Paris"})
    function = {"name": "get_weather", "description": "Weather.", "parameters": SCHEMA}
    chat = {
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Weather?"},
            {
                "role": "assistant",
                "content": "Look.",
                "reasoning_content": "hm",
                "tool_calls": [
                    {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": arguments}}
                ],
            },
            {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
            {"role": "user", "content": "Thanks."},
        ],
        "tools": [{"type": "function", "function": function}],
        "reasoning_effort": "low",
    }
    messages = {
        "system": "Be brief.",
        "max_tokens": 50,
        "messages": [
            {"role": "user", "content": "Weather?"},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "hm", "signature": "s"},
                    {"type": "text", "text": "Look."},
                    {"type": "tool_use", "id": "c1", "name": "get_weather", "input": {"city": "Paris"}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "c1", "content": "sunny"},
                    {"type": "text", "text": "Thanks."},
                ],
            },
        ],
        "tools": [{"name": "get_weather", "description": "Weather.", "input_schema": SCHEMA}],
        "output_config": {"effort": "low"},
    }
    responses = {
        "instructions": "Be brief.",
        "input": [
            {"role": "user", "content": "Weather?"},
            {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
            {"role": "assistant", "content": "Look."},
            {"type": "function_call", "call_id": "c1", "name": "get_weather", "arguments": arguments},
            {"type": "function_call_output", "call_id": "c1", "output": "sunny"},
            {"role": "user", "content": "Thanks."},
        ],
        "tools": [{"type": "function", **function}],
        "reasoning": {"effort": "low"},
    }
    for path, body in ((CHAT, chat), (MESSAGES, messages), (RESPONSES, responses)):
        reply = scripted.post(path, body)
        assert reply.status == 200, reply.json
    first, *others = [job.prompt_ids for job in scripted.service.jobs]
    assert others == [first, first]
    counted = scripted.post("/v1/tokenize", chat).json
    assert tuple(counted["tokens"]) == first


@pytest.mark.parametrize("path", [CHAT, MESSAGES, RESPONSES])
def test_a_failure_of_the_engine_is_an_error_in_the_protocol(codec: ChatCodec, path: str) -> None:
    body = {"input": "hello"} if path == RESPONSES else {**HELLO, "max_tokens": 99}
    whole = Scripted(codec, playing={"breaks_at": 2}).post(path, body)
    assert whole.status == 500
    message = "the engine failed to compute this request"
    assert whole.json["error"]["message"] == message
    stream = Scripted(codec, playing={"breaks_at": 2}).post(path, {**body, "stream": True})
    assert stream.status == 200
    events = [event for event in stream.events if event[1] != "[DONE]"]
    name, data = events[-1]
    assert len(events) > 1
    if path == CHAT:
        assert (name, data["error"]["message"], stream.events[-1][1]) == (None, message, "[DONE]")
    elif path == MESSAGES:
        assert (name, data["type"], data["error"]["type"]) == ("error", "error", "api_error")
    else:
        assert (name, data["type"], data["sequence_number"]) == ("error", "error", len(events) - 1)


@pytest.mark.parametrize(
    ("path", "field", "part"),
    [
        (CHAT, "messages", {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}),
        (RESPONSES, "input", {"type": "input_image", "image_url": "https://example.org/a.png"}),
    ],
)
def test_images_are_refused_by_their_kind(codec: ChatCodec, path: str, field: str, part: dict[str, Any]) -> None:
    reply = Scripted(codec).post(path, {field: [{"role": "user", "content": [part]}]})
    assert (reply.status, reply.json["error"]["code"]) == (400, "UnsupportedMediaType")
