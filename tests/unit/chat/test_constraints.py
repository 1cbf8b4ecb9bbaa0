import json
from collections.abc import Sequence
from typing import Any

import jsonschema_rs
import numpy as np
import pytest

from flash41.chat.constraints import CLOSING, DSML, END_OF_REASONING, OPENING
from flash41.chat.tool_grammar import LARGEST_NUM_TOOLS
from flash41.errors import RequestError
from helpers.constrained import (
    CHAT,
    CODEC,
    EOS,
    VOCAB_SIZE,
    Choice,
    accepts,
    asks_for,
    constraint,
    drawn,
    of_object,
    tool,
    walk,
)

DIGIT = {"type": "integer", "minimum": 0, "maximum": 9}
TREE = {**of_object(v=DIGIT, kids={"type": "array", "items": {"$ref": "#"}, "maxItems": 1}), "required": ["v"]}
SCHEMAS: list[Any] = [
    {"type": "boolean"},
    {"type": "null"},
    {"const": 'x"y\\'},
    {"enum": ["a", "b", 3, None, {"z": [1]}]},
    {"type": "integer", "minimum": -5, "exclusiveMaximum": 300},
    {"type": "integer", "multipleOf": 7, "minimum": 0, "maximum": 100},
    {"type": "number", "minimum": 0, "maximum": 1},
    {"type": ["integer", "null"], "minimum": 0, "maximum": 1},
    {"type": "string", "minLength": 2, "maxLength": 3},
    {"type": "string", "pattern": "^[a-c]{2,4}$"},
    {"type": "string", "pattern": "^(ab|c)d$"},
    {"type": "string", "format": "uuid"},
    {"type": "string", "format": "date"},
    {"type": "string", "format": "ipv4"},
    {"type": "string", "format": "ipv6", "maxLength": 39},
    {"title": "T", "description": "d", "type": "string", "enum": ["on", "off"], "default": "on"},
    {"type": "array", "items": DIGIT, "minItems": 1, "maxItems": 3},
    {"type": "array", "prefixItems": [{"type": "boolean"}, {"type": "null"}], "items": False, "minItems": 2},
    of_object(a={"type": "boolean"}, b={"type": "array", "items": {"type": "null"}, "maxItems": 2}),
    {"type": "object", "properties": {"a": {"type": "boolean"}, "b": DIGIT}, "additionalProperties": False},
    {
        "type": "object",
        "properties": {"a": {"type": "boolean"}, "b": DIGIT},
        "required": ["a", "b"],
        "minProperties": 2,
        "additionalProperties": False,
    },
    {"type": "object", "additionalProperties": {"type": "boolean"}, "maxProperties": 2},
    {"type": "object", "patternProperties": {"^k[0-9]$": DIGIT}, "additionalProperties": False, "maxProperties": 2},
    {"anyOf": [{"type": "boolean"}, {"type": "string", "maxLength": 2}]},
    {"oneOf": [{"type": "null"}, DIGIT, {"type": "string", "const": "none"}]},
    {"oneOf": [of_object(k={"const": "a"}, v=DIGIT), of_object(k={"const": "b"})]},
    {"allOf": [of_object(a=DIGIT)]},
    {"$ref": "#/$defs/p", "$defs": {"p": of_object(x={"$ref": "#/$defs/q"}), "q": {"enum": [1, 2]}}},
    {"type": "array", "items": {"anyOf": [{"type": "null"}, {"type": "array", "maxItems": 0}]}, "maxItems": 2},
    of_object(**{"ü ": {"const": 1}, "日": {"const": "本"}}),
    of_object(deep=of_object(deeper=of_object(deepest={"type": "boolean"}))),
    TREE,
]
FIVE = of_object(
    city={"type": "string", "maxLength": 4},
    days={"type": "integer", "minimum": 1, "maximum": 20},
    unit={"enum": ["c", "c</b", 3, None, 'ü\n"']},
    note={"type": ["string", "null"], "maxLength": 2},
    rest=of_object(k={"type": "boolean"}),
)
SPELLINGS = CODEC.tokenizer.all_token_bytes()
CALL_HEAD = f'<{DSML} invoke name="f">\n'
CALL_TAIL = f"</{DSML} invoke>\n</{DSML} calls>"


def required(*tools: Any, **body: Any) -> dict[str, Any]:
    return {**CHAT, "tools": list(tools), "tool_choice": "required", **body}


def is_valid(schema: Any, value: Any) -> bool:
    return bool(jsonschema_rs.validator_for(schema, validate_formats=True).is_valid(value))


def moved(schema: Any) -> Any:
    """The schema as the property v of an object, its references moved along."""
    text = json.dumps(schema).replace('"#"', '"#/properties/v"')
    inner = json.loads(text)
    found = {**of_object(v=inner, w={"type": "boolean"}), "required": ["v"]}
    return found | ({"$defs": inner.pop("$defs")} if isinstance(inner, dict) and "$defs" in inner else {})


def marker_writer(marker: str, seed: int) -> Choice:
    """A model bent on spelling a marker in base tokens, and random where it cannot."""
    anything, wanted = drawn(seed), marker.encode()

    def choose(allowed: Sequence[int], written: bytes) -> int:
        done = next(length for length in range(len(wanted) - 1, -1, -1) if written.endswith(wanted[:length]))
        base = [token_id for token_id in allowed if token_id not in CODEC.tokenizer.control_ids]
        spelled = [token_id for token_id in base if wanted[done:].startswith(SPELLINGS[token_id])]
        return spelled[-1] if spelled else anything(allowed, written)

    return choose


# Response formats.


@pytest.mark.parametrize("schema", SCHEMAS, ids=lambda schema: json.dumps(schema)[:60])
def test_an_answer_is_valid_by_its_schema_whatever_the_model_prefers(schema: Any) -> None:
    for seed in range(3):
        found = walk({**CHAT, **asks_for(schema)}, drawn(seed))
        assert found.is_complete
        assert is_valid(schema, json.loads(found.answer.content)), found.text


def test_a_json_object_is_an_object() -> None:
    body = {**CHAT, "response_format": {"type": "json_object"}}
    assert accepts(body, '{"a": [1, {"b": null}], "c": "d"}')
    for text in ("[1]", '"a"', "3", "null", '{"a": }', '{"a": 1', '{"a": 1}}', ' {"a": 1}', '```json\n{"a": 1}'):
        assert not accepts(body, text), text


def test_numbers_and_blanks_may_be_written_as_models_do_but_not_without_end() -> None:
    body = {**CHAT, **asks_for(of_object(a={"type": "integer"}))}
    assert accepts(body, '{\n    "a": 12\n}')
    assert accepts(body, '{"a":12}')
    assert not accepts(body, '{"a":' + " " * 41 + "12}")


def test_eos_comes_when_the_format_is_complete_and_then_nothing_else() -> None:
    held = constraint({**CHAT, **asks_for({"type": "array", "items": {"type": "integer"}})})
    assert held is not None
    for token_id in CODEC.tokenizer.encode("[1, 2"):
        assert not held.allowed()[EOS]
        held.push(token_id)
    held.push(CODEC.tokenizer.encode("]")[0])
    assert np.nonzero(held.allowed())[0].tolist() == [EOS]
    held.push(EOS)
    held.check()


@pytest.mark.parametrize("body", [asks_for({"type": "string"}), {"response_format": {"type": "json_object"}}])
def test_no_control_token_is_ever_text_of_a_format(body: dict[str, Any]) -> None:
    held = constraint({**CHAT, **body})
    assert held is not None
    for token_id in CODEC.tokenizer.encode('"a' if "json_schema" in body["response_format"] else '{"a": "b'):
        allowed = held.allowed()
        assert not any(allowed[control] for control in CODEC.tokenizer.control_ids)
        held.push(token_id)
    assert not any(held.allowed()[control] for control in CODEC.tokenizer.control_ids)


def test_reasoning_is_free_until_its_end_and_cannot_end_the_answer() -> None:
    body = asks_for({"type": "boolean"})
    assert accepts(body, f"I think <b>{{</b> hm{END_OF_REASONING}true")
    assert not accepts(body, "I think so")
    assert not accepts(body, f"I think so{END_OF_REASONING}so")
    assert not accepts(body, f"I think so{END_OF_REASONING}")


@pytest.mark.parametrize("seed", range(3))
def test_reasoning_ends_with_the_control_token_not_with_its_letters(seed: int) -> None:
    found = walk(asks_for({"type": "boolean"}), marker_writer(END_OF_REASONING, seed), 200)
    before, ended, after = found.text.partition(END_OF_REASONING)
    assert before.count("</thin") > 3
    assert (found.answer.reasoning.strip("\n"), found.answer.content) == (before.strip("\n"), after)
    if ended:
        assert after in ("true", "false", "")


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("marker", [END_OF_REASONING, OPENING])
def test_a_format_spells_no_marker_that_a_reader_would_take_for_one(marker: str, seed: int) -> None:
    schema = {
        "type": "array",
        "items": {"type": "string", "minLength": 30, "maxLength": 30},
        "minItems": 1,
        "maxItems": 2,
    }
    for extra in ({"tools": [tool("f")]}, {}):
        body = {**CHAT, **asks_for(schema), **extra}
        found = walk(body, marker_writer(marker, seed))
        assert marker.encode()[:-1] in found.text.encode()
        assert (marker not in found.text) or (marker == OPENING and not extra) or found.text.startswith("\n")
        assert found.answer.content == ("" if found.text.startswith("\n") else found.text)
        if found.answer.content:
            assert is_valid(schema, json.loads(found.answer.content))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", ["string", "array"])
def test_an_argument_spells_no_end_of_its_own(kind: str, seed: int) -> None:
    text = {"type": "string", "minLength": 20, "maxLength": 20}
    schema = of_object(a=text if kind == "string" else {"type": "array", "items": text, "minItems": 1, "maxItems": 1})
    found = walk(required(tool("f", schema), parallel_tool_calls=False), marker_writer(CLOSING, seed))
    assert found.text.count(f"</{DSML[:-1]}") > 4
    assert is_valid(schema, json.loads(found.answer.tool_calls[0].arguments))


def test_a_prefix_is_continued() -> None:
    messages = [{"role": "user", "content": "json"}, {"role": "assistant", "content": '{"a": 1', "prefix": True}]
    body = {**CHAT, **asks_for(of_object(a={"type": "integer"})), "messages": messages}
    assert accepts(body, "2}")
    assert not accepts(body, '{"a": 12}')
    messages[1] = {**messages[1], "content": "Well"}
    with pytest.raises(RequestError, match="response_format: prefix: got 'Well', expected the beginning"):
        constraint(body)


def test_a_regular_expression_holds_the_whole_content() -> None:
    body = {**CHAT, "response_format": {"type": "regex", "regex": "^(ja|nein)!{1,2}$"}}
    assert accepts(body, "ja!!")
    for text in ("ja", "\nja!", "jaja!", "ja!!!"):
        assert not accepts(body, text), text


# Tools.


@pytest.mark.parametrize("schema", SCHEMAS, ids=lambda schema: json.dumps(schema)[:60])
def test_arguments_are_valid_by_the_tools_schema(schema: Any) -> None:
    parameters = moved(schema)
    for seed in range(3):
        found = walk(required(tool("f", parameters), parallel_tool_calls=False), drawn(seed))
        assert found.is_complete
        (call,) = found.answer.tool_calls
        assert (call.name, found.answer.content, found.answer.finish_reason) == ("f", "", "tool_calls")
        assert is_valid(parameters, json.loads(call.arguments)), found.text


def test_a_call_is_written_as_the_prompt_says() -> None:
    body = required(tool("f", FIVE))
    text = (
        f'{CALL_HEAD}<{DSML} parameter name="city" string="true">a</b</{DSML} parameter>\n'
        f'<{DSML} parameter name="days" string="false">12</{DSML} parameter>\n'
        f'<{DSML} parameter name="unit" string="true">c</b</{DSML} parameter>\n'
        f'<{DSML} parameter name="note" string="false">null</{DSML} parameter>\n'
        f'<{DSML} parameter name="rest" string="false">{{"k": true}}</{DSML} parameter>\n{CALL_TAIL}'
    )
    assert accepts(body, text)
    for old, new in [
        ("a</b", "a</bcd"),  # too long
        (">12<", ">21<"),
        (">12<", ">12.5<"),
        ('"days" string="false"', '"days" string="true"'),
        ("c</b</", "d</"),
        (": true", ":true"),
        ('"city"', '"town"'),
        ('invoke name="f"', 'invoke name="g"'),
        (f"</{DSML} calls>", f"</{DSML} calls>\n"),
    ]:
        assert old in text
        assert not accepts(body, text.replace(old, new, 1)), new


def test_optional_parameters_may_be_left_out_and_keep_their_order() -> None:
    schema = {"type": "object", "properties": {name: {"type": "boolean"} for name in "abc"}, "required": ["b"]}
    body = required(tool("f", schema))

    def text(names: str) -> str:
        lines = (f'<{DSML} parameter name="{name}" string="false">true</{DSML} parameter>' for name in names)
        return CALL_HEAD + "\n".join(lines) + "\n" + CALL_TAIL

    assert [
        names for names in ("", "a", "b", "c", "ab", "bc", "ac", "abc", "ba", "bb", "bd") if accepts(body, text(names))
    ] == [
        "b",
        "ab",
        "bc",
        "abc",
    ]


def test_a_tool_without_parameters_is_called_with_an_empty_line() -> None:
    assert accepts(required(tool("f")), f"{CALL_HEAD}\n{CALL_TAIL}")
    assert not accepts(required(tool("f")), f"{CALL_HEAD}{CALL_TAIL}")


def test_parallel_calls_are_allowed_unless_refused() -> None:
    text = f"{CALL_HEAD}\n</{DSML} invoke>\n{CALL_HEAD}\n{CALL_TAIL}"
    assert accepts(required(tool("f")), text)
    assert not accepts(required(tool("f"), parallel_tool_calls=False), text)
    calls = [call for seed in range(4) for call in walk(required(tool("f"), tool("g")), drawn(seed)).answer.tool_calls]
    assert {call.name for call in calls} == {"f", "g"}


def test_a_named_choice_admits_that_tool_only() -> None:
    body = required(tool("f"), tool("g"), tool_choice={"type": "function", "function": {"name": "g"}})
    assert accepts(body, f"{CALL_HEAD}\n{CALL_TAIL}".replace('"f"', '"g"'))
    assert not accepts(body, f"{CALL_HEAD}\n{CALL_TAIL}")


def test_more_parameters_come_where_the_schema_says_so() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "null"}}, "additionalProperties": {"type": "boolean"}}
    line = f'<{DSML} parameter name="b" string="false">true</{DSML} parameter>\n'
    assert accepts(required(tool("f", schema)), f"{CALL_HEAD}{line}{CALL_TAIL}")
    for wrong in (line.replace('"b"', '"a"'), line.replace("true<", "1<"), line.replace('"b"', '"b\\"')):
        assert not accepts(required(tool("f", schema)), f"{CALL_HEAD}{wrong}{CALL_TAIL}"), wrong
    del schema["additionalProperties"]
    assert not accepts(required(tool("f", schema)), f"{CALL_HEAD}{line}{CALL_TAIL}")


def test_strict_tools_bind_calls_and_leave_content_free() -> None:
    schema = of_object(a={"type": "boolean"})
    tools = [tool("f", schema, strict=True), tool("g", of_object(a={"type": "null"}), strict=True)]
    line = f'<{DSML} parameter name="a" string="false">true</{DSML} parameter>\n'
    call = f"Well. <\n\n<{DSML} calls>\n{CALL_HEAD}{line}{CALL_TAIL}"
    for start, body in (("", {**CHAT, "tools": tools}), (f"hm{END_OF_REASONING}", {"tools": tools})):
        assert accepts(body, f"{start}No call is needed.")
        assert accepts(body, start + call)
        assert accepts(body, start + call.replace("true<", "null<").replace('"f"', '"g"'))
        assert not accepts(body, start + call.replace("true<", "3<"))
        assert not accepts(body, start + call.replace('"f"', '"g"'))
        assert not accepts(body, start + call.replace('"f"', '"h"'))
        assert not accepts(body, f"{start}{call} And more.")
        assert not accepts(body, f"{start}a {DSML}")
    assert not accepts({"tools": tools}, call)


def test_a_single_call_at_most_binds_the_block_and_leaves_arguments_free() -> None:
    body = {**CHAT, "tools": [tool("f", of_object(a={"type": "boolean"}))], "parallel_tool_calls": False}
    line = f'<{DSML} parameter name="b" string="false">[1, {{}}]</{DSML} parameter>\n'
    block = f"{CALL_HEAD}{line}</{DSML} invoke>\n"
    assert accepts(body, "None.")
    assert accepts(body, f"One.\n\n<{DSML} calls>\n{block}</{DSML} calls>")
    assert not accepts(body, f"Two.\n\n<{DSML} calls>\n{block}{block}</{DSML} calls>")


def test_a_format_with_tools_admits_the_format_or_calls() -> None:
    body = {**CHAT, **asks_for({"type": "boolean"}), "tools": [tool("f")]}
    call = f"\n\n<{DSML} calls>\n{CALL_HEAD}\n{CALL_TAIL}"
    assert accepts(body, "true")
    assert accepts(body, call)
    assert not accepts(body, "true" + call)
    assert not accepts(body, "So be it." + call)


# What is free, and what is refused.


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"response_format": {"type": "text"}},
        {"tools": [tool("f", {"type": "object", "not": {}})]},
        {"tools": [tool("f", of_object(a=DIGIT), strict=True)], "tool_choice": "none"},
        {"parallel_tool_calls": False},
    ],
)
def test_nothing_is_constrained_unless_it_is_asked_for(body: dict[str, Any]) -> None:
    assert constraint(body) is None


def test_thinking_refuses_a_required_tool_as_the_hosted_service_does() -> None:
    with pytest.raises(RequestError, match="Thinking mode does not support this tool_choice"):
        constraint({"tools": [tool("f")], "tool_choice": "required"})


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (asks_for({"not": {"type": "string"}}), 'response_format: got .*Unimplemented keys: \\["not"\\]'),
        (asks_for({"type": "array", "uniqueItems": True}), "uniqueItems"),
        (asks_for({"type": "string", "format": "colour"}), "Unknown format: colour"),
        (asks_for({"type": "string", "pattern": "a(?=b)"}), "look-around"),
        (asks_for({"$ref": "http://example.org/schema"}), "example.org"),
        (asks_for({"$ref": "#"}), "response_format: got .*expected a grammar that some text"),
        (asks_for(False), "Unsatisfiable schema: schema is false"),
        (asks_for({"x-guidance": {"lenient": True}, "not": {}}), 'Unimplemented keys: \\["not"\\]'),
        (asks_for({"const": "a</think>b"}), "response_format: got 'a</think>b', expected no </think>"),
        (asks_for({"type": "array", "maxItems": 10**9}), "response_format: maxItems: got 1000000000, expected at most"),
        ({"response_format": {"type": "regex", "regex": "a$b"}}, "anchors only around the whole"),
        ({"response_format": {"type": "regex", "regex": "\\bfoo"}}, "response_format: regex: got .*lookarounds"),
        (required(tool("f", of_object(a={"type": "array", "contains": {}}))), "tool 'f': 'a': got .*contains"),
        (required(*(tool(f"f{number}") for number in range(LARGEST_NUM_TOOLS + 1))), "tools: got 129"),
        ({"parallel_tool_calls": "no"}, "parallel_tool_calls: got 'no', expected true or false"),
    ],
)
def test_what_cannot_be_enforced_is_refused_by_name(body: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        constraint({**CHAT, **body})


def test_an_answer_whose_grammar_gives_up_ends_and_says_so() -> None:
    endless = {**of_object(a={"$ref": "#/$defs/x"}), "$defs": {"x": {"$ref": "#/$defs/x"}}}
    held = constraint({**CHAT, **asks_for(endless)})
    assert held is not None
    for _ in range(20):
        (token_id,) = np.nonzero(held.allowed())[0][:1]
        if held.failure is not None:
            break
        held.push(int(token_id))
    assert np.nonzero(held.allowed())[0].tolist() == [EOS]
    held.push(EOS)
    with pytest.raises(RequestError, match=r"constrained answer: got .*simplify the schema"):
        held.check()


def test_masks_cover_the_models_vocabulary() -> None:
    held = constraint({**asks_for({"type": "boolean"})})
    assert held is not None
    assert (held.allowed().dtype, held.allowed().shape) == (np.bool_, (VOCAB_SIZE,))
