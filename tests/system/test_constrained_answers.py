"""Answers of a model with random weights to what was asked of them: nothing but the constraint makes them right."""

import json
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from flash41.chat.conversation import Message
from flash41.engine.answers import Completion
from flash41.engine.llm import LLM
from flash41.engine.request import FinishReason, SamplingParams
from flash41.errors import RequestError
from helpers.constrained import asks_for, of_object, tool

ASKED = [Message(role="user", content="hi")]
POINT = of_object(
    x={"type": "integer", "minimum": 0, "maximum": 99},
    name={"type": "string", "maxLength": 6},
    kind={"enum": ["on", "off", None]},
)
SCHEMAS: list[Any] = [
    POINT,
    {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 3},
    {"const": "é"},
]


@pytest.fixture(scope="module")
def llm(tiny_directory: Path) -> LLM:
    return LLM(tiny_directory, max_model_len=2048)


def is_valid(schema: Any, text: str) -> bool:
    return bool(jsonschema_rs.validator_for(schema).is_valid(json.loads(text)))


def chat(llm: LLM, max_tokens: int = 120, **wishes: Any) -> Completion:
    names = ("response_format", "tools", "tool_choice", "parallel_tool_calls", "thinking", "stop")
    asked = {name: wishes.pop(name) for name in names if name in wishes}
    return llm.chat(ASKED, SamplingParams(**{"max_tokens": max_tokens, "seed": 3} | wishes), **asked)


@pytest.mark.parametrize(
    "sampling",
    [
        {"temperature": 0},
        {"top_p": 0.2, "min_p": 0.5},
        {"repetition_penalty": 2.0, "presence_penalty": 2.0, "frequency_penalty": 2.0},
        {"logit_bias": {1: -100, 300: 100, 301: 100, 1007: 100}, "temperature": 2.0},
    ],
    ids=["greedy", "narrow", "penalties", "bias to control tokens"],
)
def test_an_answer_is_valid_under_any_sampling(llm: LLM, sampling: dict[str, Any]) -> None:
    found = chat(llm, **asks_for(POINT), **sampling)
    assert found.finish_reason is FinishReason.STOP
    assert found.output_ids[-1] == llm.config.tokens.eos
    assert is_valid(POINT, found.text), found.text


def test_a_json_object_is_one_or_was_cut_by_its_length(llm: LLM) -> None:
    for seed in range(2):
        params = SamplingParams(max_tokens=40, seed=seed)
        messages = [Message(role="user", content="json")]
        found = llm.chat(messages, params, response_format={"type": "json_object"})
        assert found.text.startswith("{")
        if found.finish_reason is FinishReason.STOP:
            assert isinstance(json.loads(found.text), dict)
        else:
            assert len(found.output_ids) == 40


def test_reasoning_comes_first_and_is_free(llm: LLM) -> None:
    close = {llm.tokenizer.id_of("</think>"): 12.0}
    found = chat(llm, 400, **asks_for(POINT), thinking=True, logit_bias=close, temperature=1.5)
    assert found.finish_reason is FinishReason.STOP
    assert found.reasoning is not None
    assert is_valid(POINT, found.text), found.text
    cut = chat(
        llm,
        10,
        **asks_for(POINT),
        thinking=True,
        logit_bias={llm.config.tokens.eos: 100.0, **dict.fromkeys(close, -100.0)},
    )
    assert (cut.finish_reason, cut.text, len(cut.output_ids)) == (FinishReason.LENGTH, "", 10)


def test_calls_come_back_with_valid_arguments(llm: LLM) -> None:
    tools = [tool("f", POINT), tool("g", of_object(v={"type": ["string", "null"], "maxLength": 3}))]
    schemas = {"f": POINT, "g": tools[1]["function"]["parameters"]}
    for seed in range(2):
        found = chat(llm, 200, tools=tools, tool_choice="required", parallel_tool_calls=False, seed=seed)
        assert (found.finish_reason, found.text, len(found.tool_calls)) == (FinishReason.STOP, "", 1)
        assert is_valid(schemas[found.tool_calls[0].name], found.tool_calls[0].arguments)
    named = chat(
        llm, 200, tools=tools, tool_choice={"type": "function", "function": {"name": "g"}}, parallel_tool_calls=False
    )
    assert [call.name for call in named.tool_calls] == ["g"]


def test_the_same_seed_gives_the_same_text_in_any_batch_and_free_requests_stay_free(llm: LLM) -> None:
    def requests() -> list[Any]:
        made = []
        for number, schema in enumerate((*SCHEMAS, None)):
            wish = {} if schema is None else asks_for(schema)
            conversation = llm.codec.conversation(ASKED, thinking=False, **wish)
            params = SamplingParams(max_tokens=12, seed=number)
            held = llm.answer_constraint(params, conversation)
            assert (held is None) is (schema is None)
            made.append(llm.request(llm.codec.encode(conversation).ids, params, constraint=held))
        return made

    alone = [next(llm.as_finished([request])).request.output_ids for request in requests()]
    together = requests()
    assert len(list(llm.as_finished(together))) == len(together)
    assert [request.output_ids for request in together] == alone
    plain = llm.chat(ASKED, SamplingParams(max_tokens=12, seed=3))
    assert list(plain.output_ids) == alone[3]


def test_a_stop_string_still_ends_an_answer(llm: LLM) -> None:
    whole = chat(llm, **asks_for(POINT))
    cut = chat(llm, **asks_for(POINT), stop='"name"')
    assert cut.finish_reason is FinishReason.STOP
    assert cut.text == whole.text[: whole.text.index('"name"')]


def test_what_cannot_be_enforced_is_refused_before_anything_is_queued(llm: LLM) -> None:
    with pytest.raises(RequestError, match="uniqueItems"):
        chat(llm, **asks_for({"type": "array", "uniqueItems": True}))
    with pytest.raises(RequestError, match=r"ignore_eos with response_format.*ends with EOS"):
        chat(llm, **asks_for(POINT), ignore_eos=True)
    assert llm.engine.num_unfinished == 0


def test_a_grammar_that_gives_up_fails_its_own_request_only(llm: LLM) -> None:
    endless = {**of_object(a={"$ref": "#/$defs/x"}), "$defs": {"x": {"$ref": "#/$defs/x"}}}
    with pytest.raises(RequestError, match="constrained answer: got"):
        chat(llm, **asks_for(endless))
    assert llm.engine.num_unfinished == 0
    assert is_valid(POINT, chat(llm, **asks_for(POINT)).text)
