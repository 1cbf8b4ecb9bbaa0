"""Replies in three wire formats.  spec: chat.md sections 8 and 10, `spec/vectors/chat_parse.json`."""

import codecs
import json
import re
from pathlib import Path
from typing import Any

import pytest

from flash41.chat.conversation import ChatCodec, Conversation
from flash41.chat.protocols import Protocol, WireReply
from flash41.errors import RequestError

CASES = json.loads((Path(__file__).parents[2] / "data" / "chat" / "chat_parse.json").read_text(encoding="utf-8"))[
    "cases"
]
HELLO = {"messages": [{"role": "user", "content": "h"}]}
ASKS = {Protocol.CHAT: HELLO, Protocol.MESSAGES: {**HELLO, "max_tokens": 99}, Protocol.RESPONSES: {"input": "h"}}
TOOL = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOLS: dict[Protocol, list[dict[str, Any]]] = {
    Protocol.CHAT: [{"type": "function", "function": {"name": "f", "parameters": TOOL}}],
    Protocol.MESSAGES: [{"name": "f", "input_schema": TOOL}],
    Protocol.RESPONSES: [{"type": "function", "name": "f", "parameters": TOOL}],
}
COMPLETION = (
    "thöught 🙂\n</think>\n\nLook é.\n\n<｜DSML｜ calls>\n"
    '<｜DSML｜ invoke name="f">\n<｜DSML｜ parameter name="city" string="true">Málaga "x"</｜DSML｜ parameter>\n'
    "</｜DSML｜ invoke>\n</｜DSML｜ calls>"
)
each_protocol = pytest.mark.parametrize("protocol", list(Protocol), ids=lambda protocol: protocol.value)


def opened(codec: ChatCodec, conversation: Conversation, *, keeps: bool = False) -> WireReply:
    return codec.reply(conversation, name="id", model="m", created=1, keeps=keeps)


def events(codec: ChatCodec, conversation: Conversation, ids: list[int], reason: Any = "stop") -> list[Any]:
    """Data of all events."""
    reply = opened(codec, conversation)
    found = reply.begin(7, 2)
    for token_id in ids:
        found += reply.push(token_id)
    found += reply.finish(reason)
    assert reply.is_finished
    return [json.loads(event.data) for event in found]


def by_bytes(codec: ChatCodec, text: str) -> list[int]:
    """Ids of single bytes, but for control tokens, which are one id."""
    tokenizer, ids = codec.tokenizer, list[int]()
    single = {tokenizer.token_bytes(k): k for k in range(3, 1000) if len(tokenizer.token_bytes(k)) == 1}
    for token_id in tokenizer.encode_with_control(text):
        written = tokenizer.token_bytes(token_id)
        is_control = tokenizer.id_of(tokenizer.token_text(token_id)) == token_id
        ids += [token_id] if is_control else [single[bytes([byte])] for byte in written]
    return ids


def joined(protocol: Protocol, data: list[Any]) -> dict[str, str]:
    """The texts of all deltas, by kind."""
    texts = {"reasoning": "", "content": "", "call": ""}
    for item in data:
        if protocol is Protocol.CHAT:
            delta = item["choices"][0]["delta"]
            texts["reasoning"] += delta.get("reasoning_content") or ""
            texts["content"] += delta.get("content") or ""
            texts["call"] += "".join(call["function"]["arguments"] for call in delta.get("tool_calls") or ())
        elif item["type"] == "content_block_delta":
            kinds = {"thinking_delta": "reasoning", "text_delta": "content", "input_json_delta": "call"}
            kind = item["delta"]["type"]
            if kind in kinds:
                field = {"reasoning": "thinking", "content": "text", "call": "partial_json"}[kinds[kind]]
                texts[kinds[kind]] += item["delta"][field]
        else:
            kinds = {"reasoning_text": "reasoning", "output_text": "content", "function_call_arguments": "call"}
            name, _, end = item["type"].removeprefix("response.").rpartition(".")
            if end == "delta":
                texts[kinds[name]] += item["delta"]
    return texts


@pytest.fixture(scope="module")
def small(small_codec: ChatCodec) -> ChatCodec:
    return small_codec


@each_protocol
def test_a_stream_cut_at_any_byte_gives_the_same_texts(small: ChatCodec, protocol: Protocol) -> None:
    """Cut once, at every byte in turn, and at all bytes together."""
    conversation = small.convert({**ASKS[protocol], "tools": TOOLS[protocol]}, protocol=protocol)
    expected = {"reasoning": "thöught 🙂", "content": "Look é.", "call": '{"city": "Málaga \\"x\\""}'}
    bytewise = by_bytes(small, COMPLETION)
    assert joined(protocol, events(small, conversation, bytewise)) == expected
    for place in range(len(bytewise) + 1):
        halves = [*merged(small, bytewise[:place]), *merged(small, bytewise[place:])]
        assert joined(protocol, events(small, conversation, halves)) == expected, place


def merged(codec: ChatCodec, ids: list[int]) -> list[int]:
    """Single bytes in the tokens of the vocabulary, where they are whole characters; broken ends stay bytes."""
    tokenizer = codec.tokenizer
    found, text, left = list[int](), "", list[int]()
    decoder = codecs.getincrementaldecoder("utf-8")("ignore")
    for token_id in ids:
        left.append(token_id)
        piece = decoder.decode(tokenizer.token_bytes(token_id))
        if piece:
            text, left = text + piece, []
    start = next((k for k, token_id in enumerate(ids) if not _continues(tokenizer.token_bytes(token_id))), len(ids))
    found += ids[:start]  # the end of a character that began before the cut
    return [*found, *tokenizer.encode_with_control(text), *(left if start < len(ids) else ())]


def _continues(written: bytes) -> bool:
    return len(written) == 1 and 0x80 <= written[0] < 0xC0


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
@pytest.mark.parametrize("bytewise", [False, True])
def test_the_official_cases_come_out_whole_and_byte_by_byte(
    small: ChatCodec, case: dict[str, Any], bytewise: bool
) -> None:
    conversation = small.convert(case["request"])
    text = case["completion"]
    ids = by_bytes(small, text) if bytewise else small.tokenizer.encode_with_control(text)
    reply = opened(small, conversation, keeps=True)
    reply.begin(7, 0)
    for token_id in ids:
        assert reply.push(token_id) == [], "a reply that is kept gives no events"
    reply.finish("stop" if case["backend_finish"] == "Stop" else "length")
    (choice,) = reply.body()["choices"]
    for call in choice["message"].get("tool_calls", ()):
        del call["id"]
    if "response_format" in case["request"]:  # around JSON each piece of text becomes one blank
        choice["message"]["content"] = re.sub(" +", " ", choice["message"]["content"])
    assert choice["message"] == case["expect"]["message"]
    assert choice["finish_reason"] == case["expect"]["finish_reason"]


@each_protocol
def test_usage_counts_tokens_and_not_characters(small: ChatCodec, protocol: Protocol) -> None:
    """The codec counts text; broken characters would be several tokens, or none."""
    conversation = small.convert(ASKS[protocol], protocol=protocol)
    broken = [k for k in range(3, 300) if small.tokenizer.token_bytes(k) == b"\xff"]
    end = small.tokenizer.id_of("</think>")
    assert end is not None
    reply = opened(small, conversation, keeps=True)
    reply.begin(7, 2)
    for token_id in [*broken * 5, end, *broken * 2]:
        reply.push(token_id)
    reply.count()  # EOS
    reply.finish("stop")
    usage = reply.body()["usage"]
    if protocol is Protocol.CHAT:
        assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (7, 9, 16)
        assert usage["completion_tokens_details"] == {"reasoning_tokens": 5}
        assert usage["prompt_tokens_details"] == {"cached_tokens": 2}
    elif protocol is Protocol.RESPONSES:
        assert (usage["input_tokens"], usage["output_tokens"], usage["total_tokens"]) == (7, 9, 16)
        assert usage["output_tokens_details"] == {"reasoning_tokens": 5}
    else:
        assert (usage["input_tokens"], usage["cache_read_input_tokens"], usage["output_tokens"]) == (5, 2, 9)


@each_protocol
def test_broken_characters_are_shown_as_everywhere(small: ChatCodec, protocol: Protocol) -> None:
    conversation = small.convert(ASKS[protocol], protocol=protocol)
    ids = [k for k in range(3, 300) if small.tokenizer.token_bytes(k) in (b"\xff", b"\xc3")]
    expected = small.tokenizer.decode(ids)
    assert expected == "\ufffd" * 2
    assert joined(protocol, events(small, conversation, ids))["reasoning"] == expected


@each_protocol
def test_a_reply_ends_at_a_stop_string_and_says_nothing_more(small: ChatCodec, protocol: Protocol) -> None:
    stop = {Protocol.CHAT: {"stop": ["END"]}, Protocol.MESSAGES: {"stop_sequences": ["END"]}, Protocol.RESPONSES: {}}
    conversation = small.convert({**ASKS[protocol], **stop[protocol]}, protocol=protocol)
    reply = opened(small, conversation)
    reply.begin(7, 0)
    found = [event for token in small.tokenizer.encode_with_control("r</think>a END b") for event in reply.push(token)]
    assert reply.is_finished is (protocol is not Protocol.RESPONSES)
    if reply.is_finished:
        assert joined(protocol, [json.loads(event.data) for event in found])["content"] == "a "
        assert reply.push(70) == reply.finish("stop") == []


@each_protocol
@pytest.mark.parametrize("effort", [1, 42, 100])
def test_an_effort_may_be_a_number_in_every_protocol(small: ChatCodec, protocol: Protocol, effort: int) -> None:
    places = {
        Protocol.CHAT: {"reasoning_effort": effort},
        Protocol.RESPONSES: {"reasoning": {"effort": effort, "summary": "auto"}},
        Protocol.MESSAGES: {"output_config": {"effort": effort}},
    }
    conversation = small.convert({**ASKS[protocol], **places[protocol]}, protocol=protocol)
    assert f"Reasoning Effort: {effort} (" in small.render(conversation).text
    wrong = {
        Protocol.CHAT: {"reasoning_effort": 101},
        Protocol.RESPONSES: {"reasoning": {"effort": True}},
        Protocol.MESSAGES: {"output_config": {"effort": 1.5}},
    }
    with pytest.raises(RequestError, match="effort"):
        small.convert({**ASKS[protocol], **wrong[protocol]}, protocol=protocol)


def test_namespaced_tools_come_back_as_they_were_declared(small: ChatCodec) -> None:
    tools = [{"type": "namespace", "name": "ns", "description": "d", "tools": [{"type": "function", "name": "g"}]}]
    conversation = small.convert({"input": "h", "tools": tools}, protocol=Protocol.RESPONSES)
    assert conversation.wire is not None
    assert conversation.wire.namespaces
    (internal,) = conversation.wire.namespaces
    ids = small.tokenizer.encode_with_control(COMPLETION.replace('name="f"', f'name="{internal}"'))
    items = [
        data["item"] for data in events(small, conversation, ids) if data.get("type") == "response.output_item.done"
    ]
    (call,) = [item for item in items if item["type"] == "function_call"]
    assert (call["namespace"], call["name"]) == ("ns", "g")
