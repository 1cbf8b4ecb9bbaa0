"""`flash41 serve` as users meet it: a process, a small random model, and the clients they already have."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from flash41.engine.llm import LLM
from flash41.engine.request import SamplingParams
from helpers.lazily import lazily
from helpers.server_process import ServerProcess, serving

anthropic, openai = lazily("anthropic"), lazily("openai")

NAME = "DeepSeek-V4.1-Flash"
PATH = "/v1/chat/completions"
KEY = "a-key-of-the-tests-0123"
HELLO = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def server(tiny_directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    keys = tmp_path_factory.mktemp("keys") / "keys"
    keys.write_text(f"{KEY}\n")
    with serving(tiny_directory, "--api-key-file", str(keys), "--log-json", "--max-body", "1M") as found:
        yield found


@pytest.fixture(scope="module")
def chat(server: ServerProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0, timeout=60) as client:
        yield client


@pytest.fixture(scope="module")
def claude(server: ServerProcess) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=server.url, api_key=KEY, max_retries=0, timeout=60) as client:
        yield client


@pytest.fixture(scope="module")
def llm(tiny_directory: Path) -> LLM:
    return LLM(tiny_directory, max_num_seqs=1)


def test_the_plan_is_printed_and_then_one_line_with_the_address(server: ServerProcess) -> None:
    assert any(line.startswith("pages ") for line in server.said)
    assert server.said[-1].startswith("listening at http://127.0.0.1:")
    assert sum("http://" in line for line in server.said) == 1


def test_openai_gets_the_text_of_the_library(chat: openai.OpenAI, llm: LLM) -> None:
    found = chat.chat.completions.create(model=NAME, messages=HELLO, max_tokens=12, seed=5, temperature=0.8)  # type: ignore[call-overload]
    conversation = llm.codec.convert({"messages": HELLO})
    ids = llm.codec.encode(conversation).ids
    watcher = llm.chat_watcher(SamplingParams(), conversation)
    for event in llm.stream(ids, SamplingParams(max_tokens=12, seed=5, temperature=0.8)):
        watcher.push(event.token.token_id)
    expected = watcher.finish("length")
    message = found.choices[0].message
    assert (message.reasoning_content, message.content) == (expected.reasoning, expected.content)
    assert found.usage.prompt_tokens == len(ids)
    assert found.usage.completion_tokens == 12


def test_openai_streams_the_same_text(chat: openai.OpenAI) -> None:
    chat_mode = {"thinking": {"type": "disabled"}}
    asked = {"model": NAME, "messages": HELLO, "max_tokens": 12, "seed": 5, "extra_body": chat_mode}
    whole = chat.chat.completions.create(**asked).choices[0].message.content  # type: ignore[call-overload]
    chunks = list(chat.chat.completions.create(**asked, stream=True))  # type: ignore[call-overload]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole
    assert chunks[-1].choices[0].finish_reason == "length"
    assert chunks[-1].usage.completion_tokens == 12


def test_openai_completes_raw_text(chat: openai.OpenAI, llm: LLM) -> None:
    found = chat.completions.create(model=NAME, prompt=["Once", "Twice"], max_tokens=5, seed=5, logprobs=2)
    expected = llm.generate(["Once"], SamplingParams(max_tokens=5, seed=5))[0].text
    assert found.choices[0].text == expected
    assert len(found.choices) == 2
    assert found.choices[0].logprobs is not None


def test_openai_responses_are_answered_and_streamed(chat: openai.OpenAI) -> None:
    found = chat.responses.create(model=NAME, input="hello", max_output_tokens=8, reasoning={"effort": "none"})
    assert found.status == "incomplete"
    assert found.usage is not None
    assert found.usage.output_tokens == 8
    events = list(chat.responses.create(model=NAME, input="hello", max_output_tokens=4, stream=True))
    assert events[-1].type == "response.incomplete"


def test_anthropic_is_answered_and_streamed(claude: anthropic.Anthropic) -> None:
    found = claude.messages.create(model=NAME, max_tokens=8, messages=HELLO)  # type: ignore[arg-type]
    assert found.stop_reason == "max_tokens"
    assert found.usage.output_tokens == 8
    with claude.messages.stream(model=NAME, max_tokens=8, messages=HELLO) as stream:  # type: ignore[arg-type]
        events = [event.type for event in stream]
        final = stream.get_final_message()
    assert events[0] == "message_start"
    assert final.usage.output_tokens == 8
    counted = claude.messages.count_tokens(model=NAME, messages=HELLO)  # type: ignore[arg-type]
    assert counted.input_tokens == found.usage.input_tokens


COLOUR = {
    "type": "object",
    "properties": {
        "red": {"type": "integer", "minimum": 0, "maximum": 255},
        "tone": {"type": "string", "enum": ["dark", "light"]},
    },
    "required": ["red", "tone"],
    "additionalProperties": False,
}
CHAT_MODE = {"thinking": {"type": "disabled"}}


def is_colour(text: str) -> bool:
    found = json.loads(text)
    return set(found) == {"red", "tone"} and 0 <= found["red"] <= 255 and found["tone"] in ("dark", "light")


def test_openai_gets_structured_output_from_a_model_that_knows_none(chat: openai.OpenAI) -> None:
    wish = {"type": "json_schema", "json_schema": {"name": "colour", "schema": COLOUR, "strict": True}}
    asked = {"model": NAME, "messages": HELLO, "max_tokens": 120, "seed": 3, "response_format": wish}
    found = chat.chat.completions.create(**asked, extra_body=CHAT_MODE)  # type: ignore[call-overload]
    assert found.choices[0].finish_reason == "stop"
    assert is_colour(found.choices[0].message.content)
    answer = chat.responses.create(
        model=NAME,
        input="hello",
        max_output_tokens=120,
        reasoning={"effort": "none"},
        text={"format": {"type": "json_schema", "name": "colour", "schema": COLOUR}},
    )
    assert is_colour(answer.output_text)


def test_openai_makes_a_tool_round_trip(chat: openai.OpenAI) -> None:
    tool = {"type": "function", "function": {"name": "paint", "description": "Paints.", "parameters": COLOUR}}
    asked = {"model": NAME, "tools": [tool], "seed": 4, "max_tokens": 150, "extra_body": CHAT_MODE}
    first = chat.chat.completions.create(  # type: ignore[call-overload]
        **asked, messages=HELLO, tool_choice="required", parallel_tool_calls=False
    )
    (choice,) = first.choices
    assert choice.finish_reason == "tool_calls"
    (call,) = choice.message.tool_calls
    assert call.function.name == "paint"
    assert is_colour(call.function.arguments)
    message = choice.message.model_dump(exclude_none=True)
    result = {"role": "tool", "tool_call_id": call.id, "content": "painted"}
    second = chat.chat.completions.create(**{**asked, "max_tokens": 4}, messages=[*HELLO, message, result])  # type: ignore[call-overload]
    assert second.usage.prompt_tokens > first.usage.prompt_tokens
    assert second.usage.prompt_tokens_details.cached_tokens > 0, "the round began like the one before"


def test_anthropic_makes_a_tool_round_trip(claude: anthropic.Anthropic) -> None:
    tool: Any = {"name": "paint", "description": "Paints.", "input_schema": COLOUR}
    asked: Any = {"model": NAME, "tools": [tool], "max_tokens": 150, "thinking": {"type": "disabled"}}
    choice: Any = {"type": "tool", "name": "paint", "disable_parallel_tool_use": True}
    with claude.messages.stream(**asked, messages=HELLO, tool_choice=choice) as stream:
        first = stream.get_final_message()
    assert first.stop_reason == "tool_use"
    (block,) = [block for block in first.content if block.type == "tool_use"]
    assert is_colour(json.dumps(block.input))
    content: Any = [{"type": "tool_result", "tool_use_id": block.id, "content": "painted"}]
    turns: Any = [*HELLO, {"role": "assistant", "content": first.content}, {"role": "user", "content": content}]
    second = claude.messages.create(**{**asked, "max_tokens": 4}, messages=turns)
    assert second.usage.output_tokens == 4


def test_models_are_listed(chat: openai.OpenAI, claude: anthropic.Anthropic) -> None:
    assert [model.id for model in chat.models.list()] == [NAME]
    assert [model.id for model in claude.models.list()] == [NAME]


def test_clients_raise_the_errors_their_users_know(chat: openai.OpenAI, claude: anthropic.Anthropic) -> None:
    with pytest.raises(openai.BadRequestError, match="temperature"):
        chat.chat.completions.create(model=NAME, messages=HELLO, temperature=3)  # type: ignore[call-overload]
    with pytest.raises(openai.NotFoundError, match="not served"):
        chat.chat.completions.create(model="gpt-4", messages=HELLO)  # type: ignore[call-overload]
    with pytest.raises(openai.AuthenticationError):
        chat.with_options(api_key="wrong").models.list()
    with pytest.raises(anthropic.BadRequestError):
        claude.messages.create(model=NAME, max_tokens=8, messages=[])
    with pytest.raises(anthropic.AuthenticationError):
        claude.with_options(api_key="wrong").messages.create(model=NAME, max_tokens=8, messages=HELLO)  # type: ignore[arg-type]


def raw(server: ServerProcess, data: bytes) -> bytes:
    """What the server says to bytes that no client would send."""
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        connection.sendall(data)
        found = b""
        while b"\r\n\r\n" not in found and (part := connection.recv(65536)):
            found += part
    return found


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n" + b"".join(b"x-%d: 1\r\n" % k for k in range(100_000)) + b"\r\n",
        b"GET / HTTP/1.1\r\nhost: localhost\r\nx: " + b"a" * 100_000 + b"\r\n\r\n",
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"\x16\x03\x01 this is TLS\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        b"authorization: Bearer a-key-of-the-tests-0123\r\ncontent-length: 104857600\r\n\r\n" + b" " * 65536,
    ],
    ids=["header flood", "long header", "long path", "no HTTP", "no host", "100 MB body"],
)
def test_hostile_bytes_are_refused_with_4xx(server: ServerProcess, data: bytes) -> None:
    try:
        found = raw(server, data)
    except (ConnectionResetError, BrokenPipeError):
        found = b"HTTP/1.1 4"  # the server hung up while it was still being flooded
    assert found.startswith(b"HTTP/1.1 4"), found[:200]
    assert httpx.get(f"{server.url}/health").status_code == 200


def test_nothing_is_left_in_the_engine_and_the_log_is_json(server: ServerProcess) -> None:
    headers = {"authorization": f"Bearer {KEY}"}
    asked = {"messages": HELLO, "max_tokens": 12, "seed": 5, "logit_bias": {"1": -100}}
    assert httpx.post(f"{server.url}/v1/chat/completions", json=asked, headers=headers, timeout=60).status_code == 200
    stats = httpx.get(f"{server.url}/v1/stats", headers=headers).json()
    assert stats["open_answers"] == 0
    engine = stats["engine"]
    assert (engine["num_running"], engine["num_waiting"], engine["num_used_pages"]) == (0, 0, 0)
    lines = [json.loads(line) for line in server.log]
    assert any(line["message"] == "request" and line.get("output_tokens") == 12 for line in lines)
    assert "hello" not in "".join(server.log)
    assert KEY not in "".join(server.log)


def test_sigterm_under_load_finishes_what_is_open_and_ends_with_status_0(server: ServerProcess) -> None:
    """The last test: it ends the server.  The signal reaches the engine's process too, which leaves it to the other."""
    engine_pid = server.engine_pid
    headers = {"authorization": f"Bearer {KEY}"}
    body = {"messages": HELLO, "max_tokens": 64, "seed": 1, "logit_bias": {"1": -100}, "stream": True}
    texts: list[str] = []

    def ask() -> None:
        texts.append(httpx.post(f"{server.url}{PATH}", json=body, headers=headers, timeout=60).text)

    clients = [threading.Thread(target=ask) for _ in range(12)]
    for client in clients:
        client.start()
    with httpx.Client(headers=headers) as asking:
        # All slots and some who wait; not all at once, since the first may be done when the last has begun.
        while asking.get(f"{server.url}/v1/stats").json()["open_answers"] < 10 and not texts:
            time.sleep(0.02)
        assert asking.get(f"{server.url}/v1/stats").json()["open_answers"] > 0
    assert server.end() == 0
    for client in clients:
        client.join(60)
    assert len(texts) == len(clients)
    assert all(text.endswith("data: [DONE]\n\n") and '"finish_reason":"length"' in text for text in texts)
    assert not Path(f"/proc/{engine_pid}").exists(), "neither an orphan nor a zombie"
    log = server.end_of_log()
    assert log.pop() == "tensors=False\n", "HTTP loads no tensors, whatever it served"
    assert {json.loads(line)["level"] for line in log} <= {"info", "warning"}
    assert any("kernels" in json.loads(line)["message"] for line in log), "the engine's process logs in the same form"
