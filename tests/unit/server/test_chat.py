"""POST /v1/chat/completions over a scripted service.  spec: chat.md section 10, pitfalls 125 to 142."""

import json
from typing import Any

import pytest

from flash41.chat.conversation import ChatCodec, Conversation
from flash41.engine.request import SamplingParams
from flash41.server.settings import ServerSettings
from helpers.serving import CHAT, HELLO, NAME, Scripted, facts

TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
CALLS = (
    "think</think>\n\nLook.\n\n<｜DSML｜ calls>\n"
    '<｜DSML｜ invoke name="get_weather">\n<｜DSML｜ parameter name="city" string="true">Paris</｜DSML｜ parameter>\n'
    "</｜DSML｜ invoke>\n"
    '<｜DSML｜ invoke name="get_weather">\n<｜DSML｜ parameter name="city" string="true">Rome</｜DSML｜ parameter>\n'
    "</｜DSML｜ invoke>\n</｜DSML｜ calls>"
)


def deltas(chunks: list[Any]) -> list[dict[str, Any]]:
    return [chunk["choices"][0]["delta"] for chunk in chunks]


def test_a_whole_answer_has_content_reasoning_and_usage(codec: ChatCodec) -> None:
    scripted = Scripted(codec, playing={"num_cached_tokens": 3})
    reply = scripted.post(CHAT, {**HELLO, "model": NAME, "seed": 7})
    assert reply.status == 200
    found = reply.json
    assert found["object"] == "chat.completion"
    assert found["id"].startswith("chatcmpl-")
    assert found["model"] == NAME
    (choice,) = found["choices"]
    assert choice["message"] == {"role": "assistant", "content": "Hi there", "reasoning_content": "because"}
    assert choice["finish_reason"] == "stop"
    num_prompt, num_output = len(scripted.service.jobs[0].prompt_ids), len(codec.tokenizer.encode("because")) + 1
    num_output += len(codec.tokenizer.encode("Hi there")) + 1  # the end of the reasoning, and EOS
    assert found["usage"] == {
        "prompt_tokens": num_prompt,
        "completion_tokens": num_output,
        "total_tokens": num_prompt + num_output,
        "prompt_tokens_details": {"cached_tokens": 3},
        "completion_tokens_details": {"reasoning_tokens": len(codec.tokenizer.encode("because"))},
        "prompt_cache_hit_tokens": 3,
        "prompt_cache_miss_tokens": num_prompt - 3,
    }
    assert found["seed"] == 7
    assert reply.headers["x-seed"] == "7"


def test_a_stream_joins_to_the_whole_answer_and_ends_as_clients_expect(codec: ChatCodec) -> None:
    scripted = Scripted(codec)
    reply = scripted.post(CHAT, {**HELLO, "stream": True})
    assert reply.headers["content-type"].startswith("text/event-stream")
    assert reply.events[-1] == (None, "[DONE]")
    chunks = reply.chunks
    assert deltas(chunks)[0] == {"role": "assistant", "content": None, "reasoning_content": ""}
    assert "".join(delta.get("reasoning_content") or "" for delta in deltas(chunks)) == "because"
    assert "".join(delta.get("content") or "" for delta in deltas(chunks)) == "Hi there"
    assert deltas(chunks)[-1]["content"] == ""
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * (len(chunks) - 1) + ["stop"]
    assert all("usage" not in chunk for chunk in chunks[:-1])
    assert chunks[-1]["usage"]["completion_tokens_details"]["reasoning_tokens"] > 0
    assert len({chunk["id"] for chunk in chunks}) == 1


def test_other_chunks_carry_an_empty_usage_only_when_asked(codec: ChatCodec) -> None:
    reply = Scripted(codec).post(CHAT, {**HELLO, "stream": True, "stream_options": {"include_usage": True}})
    assert all(chunk["usage"] is None for chunk in reply.chunks[:-1])
    assert reply.chunks[-1]["usage"]["total_tokens"] > 0


def test_chat_mode_streams_no_reasoning_field(codec: ChatCodec) -> None:
    body = {**HELLO, "thinking": {"type": "disabled"}}
    scripted = Scripted(codec, "Hi")
    assert deltas(scripted.post(CHAT, {**body, "stream": True}).chunks)[0] == {"role": "assistant", "content": ""}
    message = scripted.post(CHAT, body).json["choices"][0]["message"]
    assert message == {"role": "assistant", "content": "Hi"}


def test_thinking_goes_to_its_own_channel_also_without_tools(codec: ChatCodec) -> None:
    """Pitfalls 138 and 132: reasoning never comes as content; without a close tag everything is reasoning."""
    chunks = Scripted(codec, "only thoughts").post(CHAT, {**HELLO, "stream": True}).chunks
    assert not any(delta.get("content") for delta in deltas(chunks))
    assert "".join(delta.get("reasoning_content") or "" for delta in deltas(chunks)) == "only thoughts"


def test_parallel_calls_are_streamed_with_index_id_and_arguments(codec: ChatCodec) -> None:
    """Pitfalls 125 and 135: spaced tags are calls, content holds no markup, arguments are there."""
    chunks = Scripted(codec, CALLS).post(CHAT, {**HELLO, "tools": [TOOL], "stream": True}).chunks
    pieces = [call for delta in deltas(chunks) for call in delta.get("tool_calls", ())]
    starts = [piece for piece in pieces if "id" in piece]
    assert [(start["index"], start["type"], start["function"]["name"]) for start in starts] == [
        (0, "function", "get_weather"),
        (1, "function", "get_weather"),
    ]
    assert [start["id"][:8] for start in starts] == ["call_00_", "call_01_"]
    joined = ["".join(piece["function"]["arguments"] for piece in pieces if piece["index"] == k) for k in (0, 1)]
    assert [json.loads(arguments) for arguments in joined] == [{"city": "Paris"}, {"city": "Rome"}]
    assert "".join(delta.get("content") or "" for delta in deltas(chunks)) == "Look."
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"


def test_a_call_inside_the_reasoning_is_a_call(codec: ChatCodec) -> None:
    """Pitfall 131: the tool marker ends the reasoning."""
    message = Scripted(codec, CALLS.replace("</think>", "")).post(CHAT, {**HELLO, "tools": [TOOL]}).json["choices"][0]
    assert message["finish_reason"] == "tool_calls"
    assert len(message["message"]["tool_calls"]) == 2


@pytest.mark.parametrize("opener", ["<｜DSML｜ calls>\n", "<｜DSML｜calls>\n", "<｜DSML｜ toolcalls>\n", ""])
def test_an_odd_or_missing_opener_loses_no_call(codec: ChatCodec, opener: str) -> None:
    """Pitfall 133: the opener may be misspelt or missing while the invocation is whole."""
    text = CALLS.replace("<｜DSML｜ calls>\n", opener, 1)
    message = Scripted(codec, text).post(CHAT, {**HELLO, "tools": [TOOL]}).json["choices"][0]["message"]
    assert [json.loads(call["function"]["arguments"])["city"] for call in message["tool_calls"]] == ["Paris", "Rome"]
    assert message["content"] == "Look."


def test_without_tools_markup_is_content(codec: ChatCodec) -> None:
    """Pitfall 134: only declared tools can be called."""
    message = Scripted(codec, CALLS).post(CHAT, HELLO).json["choices"][0]["message"]
    assert "tool_calls" not in message
    assert "｜DSML｜" in message["content"]


def test_a_required_call_is_all_there_is(codec: ChatCodec) -> None:
    """Pitfall 135: a named choice gives arguments and no markup in the content."""
    rest = CALLS.partition("<｜DSML｜ calls>\n")[2]
    choice = {"type": "function", "function": {"name": "get_weather"}}
    body = {**HELLO, "tools": [TOOL], "tool_choice": choice, "thinking": {"type": "disabled"}}
    scripted = Scripted(codec, rest)
    message = scripted.post(CHAT, body).json["choices"][0]["message"]
    assert (message["content"], len(message["tool_calls"])) == ("", 2)
    assert scripted.service.jobs[0].conversation is not None


def test_a_tool_round_trip_renders_call_and_result(codec: ChatCodec) -> None:
    scripted = Scripted(codec, CALLS)
    first = scripted.post(CHAT, {**HELLO, "tools": [TOOL]}).json["choices"][0]["message"]
    results = [{"role": "tool", "tool_call_id": call["id"], "content": "sunny"} for call in first["tool_calls"]]
    messages = [*HELLO["messages"], first, *results]
    assert scripted.post(CHAT, {"messages": messages, "tools": [TOOL]}).status == 200
    text = codec.tokenizer.decode(scripted.service.jobs[-1].prompt_ids)
    assert text.count("<tool_result>sunny</tool_result>") == 2
    assert 'string="true">Paris</' in text


def test_a_continued_assistant_has_no_new_cue_and_no_end(codec: ChatCodec) -> None:
    """Pitfall 126."""
    scripted = Scripted(codec, " there")
    messages = [*HELLO["messages"], {"role": "assistant", "content": "Hi", "prefix": True}]
    reply = scripted.post(CHAT, {"messages": messages, "thinking": {"type": "disabled"}})
    assert codec.tokenizer.decode(scripted.service.jobs[0].prompt_ids).endswith("<｜Assistant｜></think>Hi")
    assert reply.json["choices"][0]["message"]["content"] == " there"


def test_a_prefix_without_an_assistant_at_the_end_is_refused(codec: ChatCodec) -> None:
    messages = [{"role": "assistant", "content": "Hi", "prefix": True}, {"role": "user", "content": "x"}]
    assert Scripted(codec).post(CHAT, {"messages": messages}).status == 400


@pytest.mark.parametrize(("effort", "number"), [("low", 50), ("high", 75), ("max", 100), (37, 37), (None, 75)])
def test_efforts_are_those_of_the_release(codec: ChatCodec, effort: object, number: int) -> None:
    """Pitfalls 127 and 128: thinking with effort high unless told otherwise; 50, 75, 100."""
    scripted = Scripted(codec)
    scripted.post(CHAT, {**HELLO, "reasoning_effort": effort})
    assert f"Reasoning Effort: {number} (" in codec.tokenizer.decode(scripted.service.jobs[0].prompt_ids)


def test_the_default_mode_can_be_chat(codec: ChatCodec) -> None:
    scripted = Scripted(codec, "Hi", ServerSettings(thinks_by_default=False))
    scripted.post(CHAT, HELLO)
    assert codec.tokenizer.decode(scripted.service.jobs[0].prompt_ids).endswith("</think>")


@pytest.mark.parametrize("quoted", ["<｜deepseek_image｜>", "<｜User｜>", "<｜end▁of▁sentence｜>", "</think>"])
def test_a_control_token_that_a_user_types_is_text(codec: ChatCodec, quoted: str) -> None:
    """Pitfalls 129 and 130."""
    scripted = Scripted(codec)
    body = {"messages": [{"role": "user", "content": f"what is {quoted}?"}]}
    assert scripted.post(CHAT, body).status == 200
    (job,) = scripted.service.jobs
    plain = Scripted(codec)
    plain.post(CHAT, {"messages": [{"role": "user", "content": "what is ?"}]})
    control = codec.tokenizer.id_of(quoted)
    assert job.prompt_ids.count(control) == plain.service.jobs[0].prompt_ids.count(control)


@pytest.mark.parametrize(
    ("extra", "expected"),
    [({}, 65536), ({"reasoning_effort": "max"}, 131072), ({"thinking": {"type": "disabled"}}, 8192)],
)
def test_the_default_length_lets_thinking_end(codec: ChatCodec, extra: dict[str, Any], expected: int) -> None:
    """Pitfall 140."""
    scripted = Scripted(codec, model=facts(max_model_len=2**20))
    scripted.post(CHAT, {**HELLO, **extra})
    assert scripted.service.jobs[0].params.max_tokens == expected


def test_the_default_length_is_lowered_to_what_fits(codec: ChatCodec) -> None:
    scripted = Scripted(codec)
    scripted.post(CHAT, HELLO)
    (job,) = scripted.service.jobs
    assert job.params.max_tokens == 8192 - len(job.prompt_ids)


def test_sampling_reaches_the_engine_as_asked(codec: ChatCodec) -> None:
    asked = {"temperature": 0.25, "top_p": 0.5, "top_k": 7, "min_p": 0.125}
    asked |= {"presence_penalty": 1.5, "frequency_penalty": -0.5, "repetition_penalty": 1.25}
    scripted = Scripted(codec)
    body = {**HELLO, **asked, "logit_bias": {"5": -3}, "max_completion_tokens": 9, "seed": 2**63 - 1}
    assert scripted.post(CHAT, body).status == 200
    (job,) = scripted.service.jobs
    assert job.params == SamplingParams(max_tokens=9, logit_bias={5: -3.0}, **asked)
    assert job.seed == 2**63 - 1


def test_the_hosted_clamps_are_an_option(codec: ChatCodec) -> None:
    scripted = Scripted(codec, settings=ServerSettings(hosted_sampling=True))
    scripted.post(CHAT, {**HELLO, "temperature": 0.25, "top_p": 0.5})
    scripted.post(CHAT, {**HELLO, "temperature": 0.25, "top_p": 0.5, "thinking": {"type": "disabled"}})
    thinking, chat = (job.params for job in scripted.service.jobs)
    assert (thinking.temperature, round(thinking.top_p, 6)) == (1.0, 0.95)
    assert (chat.temperature, chat.top_p) == (0.25, 1.0)


def test_a_drawn_seed_is_reported(codec: ChatCodec) -> None:
    scripted = Scripted(codec)
    seeds = [scripted.post(CHAT, HELLO).json["seed"] for _ in range(2)]
    assert seeds == [job.seed for job in scripted.service.jobs]
    assert seeds[0] != seeds[1]


@pytest.mark.parametrize("stream", [False, True])
def test_several_choices_are_numbered_seeded_and_summed(codec: ChatCodec, stream: bool) -> None:
    scripted = Scripted(codec, lambda job: f"r</think>seed {job.seed}")
    reply = scripted.post(CHAT, {**HELLO, "n": 8, "seed": 5, "stream": stream})
    expected = {k: f"seed {5 + k}" for k in range(8)}
    if stream:
        texts: dict[int, str] = {}
        for chunk in reply.chunks:
            choice = chunk["choices"][0]
            texts[choice["index"]] = texts.get(choice["index"], "") + (choice["delta"].get("content") or "")
        usage = reply.chunks[-1]["usage"]
        assert all("usage" not in chunk for chunk in reply.chunks[:-1])
        assert sum(chunk["choices"][0]["finish_reason"] == "stop" for chunk in reply.chunks) == 8
        assert reply.events[-1] == (None, "[DONE]")
    else:
        texts = {choice["index"]: choice["message"]["content"] for choice in reply.json["choices"]}
        usage = reply.json["usage"]
    assert texts == expected
    assert usage["prompt_tokens"] == len(scripted.service.jobs[0].prompt_ids)
    output = [len(codec.tokenizer.encode_with_control(f"r</think>seed {5 + k}")) + 1 for k in range(8)]
    assert usage["completion_tokens"] == sum(output)
    assert usage["completion_tokens_details"]["reasoning_tokens"] == 8
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


def test_log_probabilities_stand_beside_their_tokens(codec: ChatCodec) -> None:
    body = {**HELLO, "logprobs": True, "top_logprobs": 1}
    found = Scripted(codec, "r</think>Hi").post(CHAT, body).json["choices"][0]["logprobs"]
    (entry,) = found["reasoning_content"]
    expected = {"token": "r", "logprob": -0.5, "bytes": [114]}
    assert entry == {**expected, "top_logprobs": [expected]}
    assert "".join(entry["token"] for entry in found["content"]) == "Hi"


def test_a_stop_string_ends_the_content_and_the_engine(codec: ChatCodec) -> None:
    scripted = Scripted(codec, "rENDr</think>one END two")
    reply = scripted.post(CHAT, {**HELLO, "stop": ["END"]})
    message = reply.json["choices"][0]["message"]
    assert message == {"role": "assistant", "content": "one ", "reasoning_content": "rENDr"}
    assert reply.json["choices"][0]["finish_reason"] == "stop"
    expected = len(codec.tokenizer.encode_with_control("rENDr</think>one END"))
    assert reply.json["usage"]["completion_tokens"] == expected


def test_a_length_limit_is_told(codec: ChatCodec) -> None:
    choice = Scripted(codec).post(CHAT, {**HELLO, "max_tokens": 2}).json["choices"][0]
    assert choice["finish_reason"] == "length"


def test_what_holds_a_conversation_is_checked_once_and_goes_with_every_choice(codec: ChatCodec) -> None:
    seen = []

    def held(conversation: Conversation) -> object:
        seen.append(conversation.thinking)
        return seen

    scripted = Scripted(codec, constraint_for=held)
    scripted.post(CHAT, {**HELLO, "n": 2, "seed": 3})
    assert seen == [True]
    wishes = [job.conversation for job in scripted.service.jobs]
    assert [wish and dict(wish.body) for wish in wishes] == [HELLO, HELLO]


def test_a_conversation_that_asks_for_nothing_is_not_described(codec: ChatCodec) -> None:
    scripted = Scripted(codec)
    scripted.post(CHAT, HELLO)
    scripted.post(CHAT, {**HELLO, "stop": ["x"]})
    assert [job.conversation is None for job in scripted.service.jobs] == [True, False]
