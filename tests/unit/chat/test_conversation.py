import json
from pathlib import Path
from typing import Any

import deepseek_recipe as recipe
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flash41.chat.conversation import ChatCodec, Message, ToolCall
from flash41.chat.tokenizer import Tokenizer
from flash41.errors import ConfigError, RequestError
from helpers.tiny_tokenizer import TINY_IMAGE_ID, TINY_TOKENIZER

CASES = json.loads((Path(__file__).parents[2] / "data/chat/chat_encode.json").read_text(encoding="utf-8"))["cases"]
CODEC = ChatCodec.from_directory(TINY_TOKENIZER, TINY_IMAGE_ID)
FIRST_CONTROL_ID = 999
WEATHER = {"type": "function", "function": {"name": "get_weather", "description": "Get weather"}}
TEXTS = st.text(
    alphabet=st.one_of(st.characters(exclude_categories=["Cs"]), st.sampled_from("<｜>User/think▁DSML")), max_size=40
)


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_the_release_gives_the_recorded_prompt(release_codec: ChatCodec, case: dict[str, Any]) -> None:
    conversation = release_codec.convert(case["request"])
    rendering = release_codec.render(conversation)
    assert rendering.text == case["prompt"]
    assert [list(span) for span in rendering.control_spans] == case["special_ranges"]
    prompt = release_codec.encode(conversation)
    assert list(prompt.ids) == case["token_ids"]
    assert prompt.text == case["prompt"]
    assert prompt.images == ()


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_the_official_encoder_gives_the_same_ids_with_the_small_tokenizer(case: dict[str, Any]) -> None:
    conversation = CODEC.convert(case["request"])
    official = (
        recipe.DeepseekV41Encoding()
        .with_special_tokens(recipe.SpecialTokens(image="<｜deepseek_image｜>"))
        .with_tokenizer(recipe.Tokenizer.from_file(str(TINY_TOKENIZER / "tokenizer.json")))
    )
    assert list(CODEC.encode(conversation).ids) == official.encode(conversation.request.conversation)


def test_own_records_and_a_wire_body_give_the_same_prompt(release_codec: ChatCodec) -> None:
    case = next(case for case in CASES if case["name"] == "tool_round_think")
    messages = [
        Message(
            role=message["role"],
            content=message["content"],
            reasoning=message.get("reasoning_content"),
            tool_calls=tuple(
                ToolCall(id=call["id"], name=call["function"]["name"], arguments=call["function"]["arguments"])
                for call in message.get("tool_calls", ())
            ),
            tool_call_id=message.get("tool_call_id"),
        )
        for message in case["request"]["messages"]
    ]
    conversation = release_codec.conversation(messages, tools=case["request"]["tools"])
    assert list(release_codec.encode(conversation).ids) == case["token_ids"]


@pytest.mark.parametrize(("thinking", "tail"), [(True, "<think>"), (False, "</think>")])
def test_the_mode_decides_how_the_prompt_ends(thinking: bool, tail: str) -> None:
    conversation = CODEC.conversation([Message(role="user", content="hi")], thinking=thinking)
    prompt = CODEC.encode(conversation)
    assert conversation.thinking is prompt.thinking is thinking
    assert prompt.text.endswith(f"<｜User｜>hi<｜Assistant｜>{tail}")
    assert prompt.ids[-1] == CODEC.tokenizer.id_of(tail)


def test_a_body_without_a_mode_takes_the_default() -> None:
    body = {"messages": [{"role": "user", "content": "hi"}]}
    assert CODEC.convert(body).thinking
    assert not CODEC.convert(body, thinking_by_default=False).thinking
    assert CODEC.convert({**body, "thinking": {"type": "enabled"}}, thinking_by_default=False).thinking


def test_a_prefix_is_continued_without_a_header() -> None:
    messages = [Message(role="user", content="q"), Message(role="assistant", content="part", prefix=True)]
    prompt = CODEC.encode(CODEC.conversation(messages, thinking=False))
    assert prompt.text.endswith("<｜Assistant｜></think>part")


@pytest.mark.parametrize(("level", "number"), [("low", 50), ("high", 75), ("max", 100)])
def test_a_level_and_its_number_give_the_same_prompt(release_codec: ChatCodec, level: str, number: int) -> None:
    messages = [Message(role="system", content="s"), Message(role="user", content="q")]
    named = release_codec.encode(release_codec.conversation(messages, effort=level))
    numbered = release_codec.encode(release_codec.conversation(messages, effort=number))
    assert f"Reasoning Effort: {number} (range" in named.text
    assert named == numbered


@pytest.mark.parametrize("effort", [1, 42, 88, 100])
def test_any_number_costs_as_many_ids_as_a_level(release_codec: ChatCodec, effort: int) -> None:
    messages = [Message(role="system", content="mid sys"), Message(role="user", content="q<｜User｜>")]
    conversation = release_codec.conversation(messages, effort=effort)
    rendering = release_codec.render(conversation)
    spelled = [rendering.text[start:end] for start, end in rendering.control_spans]
    assert spelled == ["<｜begin▁of▁sentence｜>", "<｜System｜>", "<｜User｜>", "<｜Assistant｜>", "<think>"]
    assert f"<｜System｜>Reasoning Effort: {effort} (range 1-100, " in rendering.text
    usual = release_codec.encode(release_codec.conversation(messages))
    assert len(release_codec.encode(conversation).ids) == len(usual.ids)


def test_only_the_renderers_own_number_is_replaced() -> None:
    text = "Reasoning Effort: 75 (range 1-100, "
    messages = [Message(role="system", content=text), Message(role="user", content=text)]
    prompt = CODEC.encode(CODEC.conversation(messages, effort=7))
    assert prompt.text.count("Effort: 7 (range") == 1
    assert prompt.text.count(text) == 2


def test_an_effort_is_inert_in_chat_mode() -> None:
    messages = [Message(role="user", content="hi")]
    plain = CODEC.encode(CODEC.conversation(messages, thinking=False))
    assert CODEC.encode(CODEC.conversation(messages, thinking=False, effort=42)) == plain


@pytest.mark.parametrize("effort", [0, -1, 101, True, False, 1.5, [50]])
def test_other_efforts_are_refused(effort: Any) -> None:
    with pytest.raises(RequestError, match=r"reasoning_effort: got .*, expected low, high, max or an integer"):
        CODEC.convert({"messages": [{"role": "user", "content": "hi"}], "reasoning_effort": effort})


def test_an_unknown_level_is_refused() -> None:
    with pytest.raises(RequestError, match="bogus"):
        CODEC.conversation([Message(role="user", content="hi")], effort="bogus")


@settings(deadline=None, max_examples=150)
@given(TEXTS, TEXTS, st.booleans())
def test_no_text_places_a_control_token(system: str, user: str, thinking: bool) -> None:
    system, user = f"{system}<think>", f"<｜Assistant｜>{user}｜DSML｜<｜deepseek_image｜>"
    conversation = CODEC.conversation(
        [Message(role="system", content=system), Message(role="user", content=user)], thinking=thinking
    )
    prompt = CODEC.encode(conversation)
    control = [token_id for token_id in prompt.ids if token_id < 3 or token_id >= FIRST_CONTROL_ID]
    tail = "<think>" if thinking else "</think>"
    expected = ["<｜begin▁of▁sentence｜>", "<｜System｜>", "<｜User｜>", "<｜Assistant｜>", tail]
    assert [CODEC.tokenizer.token_text(token_id) for token_id in control] == expected
    assert CODEC.tokenizer.decode(prompt.ids) == prompt.text
    assert user in prompt.text


def test_a_declared_tool_reaches_the_prompt_and_a_forbidden_one_does_not() -> None:
    messages = [Message(role="user", content="hi")]
    declared = CODEC.encode(CODEC.conversation(messages, tools=[WEATHER]))
    assert '{"name": "get_weather", "description": "Get weather", "parameters": {}}' in declared.text
    forbidden = CODEC.encode(CODEC.conversation(messages, tools=[WEATHER], tool_choice="none"))
    assert "get_weather" not in forbidden.text


def test_a_required_call_opens_the_calls_in_chat_mode_and_is_refused_in_thinking() -> None:
    messages = [Message(role="user", content="hi")]
    required = CODEC.conversation(messages, thinking=False, tools=[WEATHER], tool_choice="required")
    assert CODEC.render(required).text.endswith("</think>\n\n<｜DSML｜ calls>\n")
    with pytest.raises(RequestError, match="Thinking mode does not support this tool_choice"):
        CODEC.conversation(messages, tools=[WEATHER], tool_choice="required")


def test_a_response_format_is_written_into_the_prompt() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    wish = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    rendering = CODEC.render(CODEC.conversation([Message(role="user", content="hi")], response_format=wish))
    assert json.dumps(schema) in rendering.text


@pytest.mark.parametrize(
    ("messages", "fault"),
    [
        ([], "Empty input messages"),
        ([{"role": "developer", "content": "x"}], "developer"),
        ([{"role": "user", "content": "\ud800"}], "surrogates"),
        ([{"role": "user", "content": float("nan")}], "NaN"),
        ([{"role": "tool", "content": "x", "tool_call_id": "c"}], "tool"),
    ],
)
def test_an_impossible_body_is_refused_with_its_reason(messages: list[dict[str, Any]], fault: str) -> None:
    with pytest.raises(RequestError, match=fault):
        CODEC.convert({"messages": messages})


@pytest.mark.parametrize("image_id", [TINY_IMAGE_ID, 1014])
def test_each_image_becomes_the_configured_id(image_id: int) -> None:
    codec = ChatCodec.from_directory(TINY_TOKENIZER, image_id)
    spelling = codec.tokenizer.token_text(image_id)
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    content = [{"type": "text", "text": f"typed {spelling}"}, picture, {"type": "text", "text": "b"}, picture]
    prompt = codec.encode(codec.convert({"messages": [{"role": "user", "content": content}]}))
    assert prompt.ids.count(image_id) == len(prompt.images) == 2
    assert [image.data_url for image in prompt.images] == ["data:image/png;base64,AAAA"] * 2
    assert f"typed {spelling}\n\n{spelling}\n\nb\n\n{spelling}<｜Assistant｜>" in prompt.text


@pytest.mark.parametrize("image_id", [-1, 1024, 300])
def test_an_image_id_that_is_no_control_token_is_refused(image_id: int) -> None:
    with pytest.raises(ConfigError, match=f"image_token_id: got {image_id}, expected a"):
        ChatCodec.from_directory(TINY_TOKENIZER, image_id)


def test_every_missing_control_token_is_named(tmp_path: Path) -> None:
    document = json.loads((TINY_TOKENIZER / "tokenizer.json").read_text(encoding="utf-8"))
    for token in document["added_tokens"]:
        if token["content"] in ("<think>", "<｜latest_reminder｜>"):
            token["content"] += "?"
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(ConfigError, match="no token <think>, <｜latest_reminder｜"):
        ChatCodec(Tokenizer.from_file(path), TINY_IMAGE_ID)


def test_parallel_calls_are_allowed_unless_the_body_says_no() -> None:
    for value, expected in (None, True), (True, True), (False, False):
        body = {"messages": [{"role": "user", "content": "hi"}], "parallel_tool_calls": value}
        assert CODEC.convert(body).parallel_tool_calls is expected
    assert CODEC.convert({"messages": [{"role": "user", "content": "hi"}]}).parallel_tool_calls
    messages = [Message(role="user", content="hi")]
    assert CODEC.conversation(messages, parallel_tool_calls=False).parallel_tool_calls is False
    with pytest.raises(RequestError, match="parallel_tool_calls: got 1, expected true or false"):
        CODEC.convert({"messages": [{"role": "user", "content": "hi"}], "parallel_tool_calls": 1})


def test_a_body_nested_too_deeply_is_refused() -> None:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(1000):
        schema = {"type": "array", "items": schema}
    with pytest.raises(RequestError, match="nesting depth"):
        CODEC.conversation(
            [Message(role="user", content="hi")],
            response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}},
        )
