"""What went wrong in other servers of this model family, row by row, and the test that would notice it here.

The rows are those of the list of pitfalls on tools, streaming and the contract of a server.  Those that no other test
holds are tested in this file.
"""

import ast
from collections.abc import Sequence
from typing import Any

import pytest

from flash41.chat.conversation import ChatCodec
from flash41.config.huggingface import config_from_dict
from flash41.errors import ConfigError
from helpers.command_line import ROOT
from helpers.config_documents import patched
from helpers.serving import CHAT, COMPLETIONS, HELLO, MESSAGES, RESPONSES, Scripted, small_codec

HERE = "system/test_serving_pitfalls.py"
SERVED = "unit/server/test_chat.py"
ROWS: dict[int, Sequence[tuple[str, str]]] = {
    125: [(SERVED, "test_parallel_calls_are_streamed_with_index_id_and_arguments")],
    126: [
        (SERVED, "test_a_continued_assistant_has_no_new_cue_and_no_end"),
        (SERVED, "test_a_prefix_without_an_assistant_at_the_end_is_refused"),
    ],
    127: [(SERVED, "test_efforts_are_those_of_the_release"), (SERVED, "test_the_default_mode_can_be_chat")],
    128: [(SERVED, "test_efforts_are_those_of_the_release")],
    129: [(SERVED, "test_a_control_token_that_a_user_types_is_text")],
    130: [
        (SERVED, "test_a_control_token_that_a_user_types_is_text"),
        ("unit/chat/test_conversation.py", "test_no_text_places_a_control_token"),
    ],
    131: [(SERVED, "test_a_call_inside_the_reasoning_is_a_call")],
    132: [(SERVED, "test_thinking_goes_to_its_own_channel_also_without_tools")],
    133: [(SERVED, "test_an_odd_or_missing_opener_loses_no_call")],
    134: [
        (SERVED, "test_without_tools_markup_is_content"),
        ("unit/chat/test_constraints.py", "test_strict_tools_bind_calls_and_leave_content_free"),
    ],
    135: [(SERVED, "test_a_required_call_is_all_there_is")],
    136: [
        ("system/test_constrained_answers.py", "test_calls_come_back_with_valid_arguments"),
        ("system/test_serve.py", "test_openai_makes_a_tool_round_trip"),
        ("system/test_serve.py", "test_anthropic_makes_a_tool_round_trip"),
    ],
    137: [(HERE, "test_the_last_chunk_says_why_and_how_much_and_nothing_comes_behind_it")],
    138: [(SERVED, "test_thinking_goes_to_its_own_channel_also_without_tools")],
    139: [
        ("unit/server/test_streaming.py", "test_silence_is_broken_by_comments_and_clients_ignore_them"),
        (HERE, "test_a_stream_that_breaks_off_has_an_error_for_its_last_event"),
    ],
    140: [(SERVED, "test_the_default_length_lets_thinking_end")],
    141: [(HERE, "test_the_end_token_is_the_one_at_the_root_of_the_configuration")],
    142: [("unit/server/test_bodies.py", "test_a_field_out_of_bounds_never_reaches_the_engine")],
    143: [(HERE, "test_nothing_behind_the_end_token_is_part_of_an_answer")],
}


@pytest.fixture(scope="module")
def codec() -> ChatCodec:
    return small_codec()


def test_every_row_has_a_test_that_exists() -> None:
    assert sorted(ROWS) == list(range(125, 144))
    named = {place for places in ROWS.values() for place in places}
    missing = []
    for file in {file for file, _ in named}:
        tree = ast.parse((ROOT / "tests" / file).read_text(encoding="utf-8"))
        known = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        missing += [(file, name) for place, name in named if place == file and name not in known]
    assert missing == []


def body_of(path: str, **fields: Any) -> dict[str, Any]:
    if path == COMPLETIONS:
        return {"prompt": "hello", "max_tokens": 40, **fields}
    if path == RESPONSES:
        return {"input": "hello", **fields}
    return {**HELLO, "max_tokens": 40, **fields}


def test_the_last_chunk_says_why_and_how_much_and_nothing_comes_behind_it(codec: ChatCodec) -> None:
    for options in ({}, {"include_usage": True}):
        reply = Scripted(codec).post(CHAT, body_of(CHAT, stream=True, stream_options=options))
        *before, last, done = reply.events
        (choice,) = last[1]["choices"]
        assert (choice["finish_reason"], done) == ("stop", (None, "[DONE]"))
        assert last[1]["usage"]["total_tokens"] > 0
        assert not any(choice["delta"].get(field) for field in ("content", "reasoning_content", "tool_calls"))
        # A delta is an object in every chunk, also where it carries no text: clients index it unasked.
        assert all(isinstance(chunk["choices"][0]["delta"], dict) for _, chunk in before)
        assert all(chunk["choices"][0]["finish_reason"] is None for _, chunk in before)


LAST = {MESSAGES: "message_stop", RESPONSES: "response.completed"}


@pytest.mark.parametrize("path", [MESSAGES, RESPONSES])
def test_other_protocols_end_with_their_own_last_event(codec: ChatCodec, path: str) -> None:
    names = [name for name, _ in Scripted(codec).post(path, body_of(path, stream=True)).events]
    assert names[-1] == LAST[path]
    assert names.count(LAST[path]) == 1


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, MESSAGES, RESPONSES])
@pytest.mark.parametrize("breaks_at", [0, 3])
def test_a_stream_that_breaks_off_has_an_error_for_its_last_event(codec: ChatCodec, path: str, breaks_at: int) -> None:
    reply = Scripted(codec, playing={"breaks_at": breaks_at}).post(path, body_of(path, stream=True))
    events = reply.events
    assert reply.status == 200
    if path in (CHAT, COMPLETIONS):
        assert events.pop() == (None, "[DONE]")
        assert events[-1][1]["error"]["code"] == "engine_error"
    else:
        assert events[-1][0] == "error"
        assert events[-1][1]["type"] == "error"
    assert sum("error" in str(name) or "error" in data for name, data in events) == 1


def test_the_end_token_is_the_one_at_the_root_of_the_configuration() -> None:
    assert config_from_dict(patched({})).tokens.eos == 1
    assert config_from_dict(patched({"eos_token_id": 7, "text_config.eos_token_id": 7})).tokens.eos == 7
    with pytest.raises(ConfigError, match="eos_token_id"):
        config_from_dict(patched({"text_config.eos_token_id": 7}))


@pytest.mark.parametrize("stream", [False, True])
def test_nothing_behind_the_end_token_is_part_of_an_answer(codec: ChatCodec, stream: bool) -> None:
    scripted = Scripted(codec, "42<｜end▁of▁sentence｜> is what I meant")
    raw = scripted.post(COMPLETIONS, body_of(COMPLETIONS, stream=stream))
    texts = [chunk["choices"][0]["text"] for chunk in raw.chunks] if stream else [raw.json["choices"][0]["text"]]
    assert "".join(texts) == "42"
    chat = scripted.post(CHAT, body_of(CHAT, stream=stream, thinking={"type": "disabled"}))
    field = "delta" if stream else "message"
    choices = [chunk["choices"][0] for chunk in chat.chunks] if stream else chat.json["choices"]
    assert "".join(choice[field].get("content") or "" for choice in choices) == "42"
    assert choices[-1]["finish_reason"] == "stop"
