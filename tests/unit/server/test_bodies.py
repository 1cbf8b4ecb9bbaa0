"""Hostile bodies: each is refused at once, by its name, and leaves nothing behind."""

import asyncio
import json
import re
import time
from collections.abc import Callable
from typing import Any

import pytest

from flash41.chat.conversation import ChatCodec
from flash41.chat.tokenizer import Tokenizer
from flash41.server.schemas import LARGEST_NUM_BIASES, LARGEST_NUM_MESSAGES, LARGEST_NUM_TOOLS
from flash41.server.settings import ServerSettings
from helpers.serving import CHAT, COMPLETIONS, HELLO, MESSAGES, RESPONSES, Scripted, call, facts, run

JSON = {"content-type": "application/json"}
USER = {"role": "user", "content": "x"}


def nested(depth: int) -> bytes:
    return b'{"messages": ' + b"[" * depth + b"]" * depth + b"}"


HOSTILE: dict[str, tuple[bytes, int]] = {
    "nothing": (b"", 400),
    "no object": (b"[]", 400),
    "half": (b'{"messages": [', 400),
    "NaN": (b'{"messages": [], "temperature": NaN}', 400),
    "infinity": (b'{"messages": [], "temperature": Infinity}', 400),
    "overflow": (json.dumps({"messages": [USER]}).encode()[:-1] + b', "temperature": 1e999}', 400),
    "overflow inside": (b'{"messages": [{"role": "user", "content": "x", "weight": 1e999}]}', 400),
    "no UTF-8": (b'{"messages": [{"role": "user", "content": "\xff\xfe"}]}', 400),
    "surrogate": (b'{"messages": [{"role": "user", "content": "\\ud800"}]}', 400),
    "deep": (nested(100_000), 400),
    "deep within": (b'{"messages": [{"role": "user", "content": ' + b'[{"a":' * 150 + b"1" + b"}]" * 150 + b"}]}", 400),
    "long number": (b'{"messages": [], "seed": ' + b"9" * 5000 + b"}", 400),
    "a million stop strings": (json.dumps({"messages": [USER], "stop": ["a"] * 10**6}).encode(), 400),
    "long stop string": (json.dumps({"messages": [USER], "stop": "a" * 10**6}).encode(), 400),
    "many biases": (json.dumps({"messages": [USER], "logit_bias": {str(k): 1 for k in range(10**5)}}).encode(), 400),
    "null byte": (b"\x00", 400),
    "unknown image": (
        json.dumps(
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "gopher://x/"}}]}]}
        ).encode(),
        400,
    ),
    "local file as image": (
        json.dumps(
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}]}]}
        ).encode(),
        400,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_body_is_refused_fast(codec: ChatCodec, name: str) -> None:
    body, status = HOSTILE[name]
    scripted = Scripted(codec)
    started = time.monotonic()
    reply = scripted.post(CHAT, body)
    assert time.monotonic() - started < 5, "a second, on a machine with nothing else to do"
    assert reply.status == status, reply.body
    assert len(reply.body) < 2000
    assert reply.json["error"]["message"]
    assert scripted.service.jobs == []
    assert scripted.app.context.gate.num_open == 0


@pytest.mark.parametrize(
    "field",
    [
        {"n": 0}, {"n": 9}, {"n": 1.5}, {"n": True}, {"n": "1"}, {"temperature": -0.1}, {"temperature": 2.1},
        {"temperature": "1"}, {"top_p": 0}, {"top_p": 1.1}, {"top_k": 0}, {"min_p": 2}, {"seed": -1}, {"seed": 2**63},
        {"max_tokens": 0}, {"max_tokens": 393_217}, {"max_completion_tokens": 0}, {"presence_penalty": 3},
        {"repetition_penalty": 0}, {"logit_bias": {"5": 101}}, {"logit_bias": {"-1": 1}}, {"logit_bias": {"1024": 1}},
        {"logit_bias": {"٣": 1}}, {"logit_bias": {"x": 1}}, {"stop": [""]}, {"stop": ["a"] * 17}, {"stop": 5},
        {"top_logprobs": 3}, {"logprobs": True, "top_logprobs": 21}, {"stream": "yes"}, {"tools": [{}]}, {"tools": [5]},
        {"thinking": {"type": "sideways"}}, {"reasoning_effort": 0}, {"reasoning_effort": 101},
        {"reasoning_effort": "medium-rare"}, {"messages": []}, {"messages": [{}]}, {"model": 5}, {"model": "x" * 300},
        {"tool_choice": "required", "tools": [{"type": "function", "function": {"name": "f"}}]},
        {"response_format": {"type": "yaml"}}, {"response_format": {"type": "json_object"}},
        {"messages": [{"role": "tool", "content": "x", "tool_call_id": "none"}]},
    ],
    ids=str,
)  # fmt: skip
def test_a_field_out_of_bounds_never_reaches_the_engine(codec: ChatCodec, field: dict[str, Any]) -> None:
    """Pitfall 142: values are refused by name, never asserted."""
    scripted = Scripted(codec)
    reply = scripted.post(CHAT, {**HELLO, **field})
    assert reply.status == 400, reply.json
    assert reply.json["error"]["type"] == "invalid_request_error"
    assert scripted.service.jobs == []


@pytest.mark.parametrize("path", [CHAT, MESSAGES, RESPONSES, COMPLETIONS, "/v1/tokenize", "/v1/messages/count_tokens"])
def test_a_body_above_the_limit_is_refused_before_it_is_read(codec: ChatCodec, path: str) -> None:
    scripted = Scripted(codec, settings=ServerSettings(max_body_bytes=1000))
    announced = run(call(scripted.app, "POST", path, b"", {**JSON, "content-length": str(100 * 2**20)}))
    assert announced.status == 413
    chunked = run(call(scripted.app, "POST", path, headers=JSON, pieces=[b"x" * 400] * 1000))
    assert chunked.status == 413
    assert chunked.headers["connection"] == "close"


def test_a_body_that_trickles_is_given_up(codec: ChatCodec) -> None:
    scripted = Scripted(codec, settings=ServerSettings(body_timeout_seconds=0.05))

    async def trickle() -> int:
        async def receive() -> dict[str, Any]:
            await asyncio.sleep(0.02)
            return {"type": "http.request", "body": b" ", "more_body": True}

        sent: list[int] = []

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                sent.append(message["status"])

        scope = {
            "type": "http", "method": "POST", "path": CHAT, "raw_path": CHAT.encode(), "query_string": b"",
            "root_path": "", "scheme": "http", "http_version": "1.1", "server": ("localhost", 80), "client": ("::1", 1),
            "headers": [(b"host", b"localhost"), (b"content-type", b"application/json")],
        }  # fmt: skip
        await scripted.app(scope, receive, send)
        return sent[0]

    assert run(trickle()) == 408


def test_a_large_conversation_is_read_beside_the_loop(codec: ChatCodec) -> None:
    scripted = Scripted(codec)
    body = {"messages": [{"role": "user", "content": "a " * 3000 + " " * 30_000}]}
    reply = scripted.post(CHAT, body)
    assert reply.status == 400  # too long for the model, which is known only when it was encoded
    assert "maximum context length" in reply.json["error"]["message"]


def test_all_faults_of_a_body_are_told_but_not_endlessly(codec: ChatCodec) -> None:
    message = (
        Scripted(codec)
        .post(CHAT, {**HELLO, "logit_bias": {str(k): "x" for k in range(20)}, "n": 0})
        .json["error"]["message"]
    )
    assert "logit_bias.0" in message
    assert "and 13 more" in message


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, lambda text: {"messages": [{"role": "user", "content": text}]}),
        (COMPLETIONS, lambda text: {"prompt": text}),
        ("/v1/tokenize", lambda text: {"text": text}),
    ],
    ids=["chat", "completions", "tokenize"],
)
def test_a_text_that_cannot_fit_is_not_tokenized(codec: ChatCodec, path: str, body: Callable[[str], object]) -> None:
    longest = codec.tokenizer.longest_token_bytes
    spy = ChatCodec(Spy(codec.tokenizer), codec.tokenizer.id_of("<｜deepseek_image｜>"))
    scripted = Scripted(spy, model=facts(max_model_len=100))
    reply = scripted.post(path, body("é" * (50 * longest + 1)))
    assert reply.status == 400
    assert reply.json["error"]["code"] == "context_length_exceeded"
    assert re.search(r"more than 10\d tokens", reply.json["error"]["message"])
    assert spy.tokenizer.encoded == []
    scripted.post(path, body("a" * (50 * longest)))
    assert spy.tokenizer.encoded != [], "half of that might fit"


class Spy:
    """A tokenizer that notes what it is to encode."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.encoded: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)

    def encode(self, text: str) -> list[int]:
        self.encoded.append(text)
        return self._tokenizer.encode(text)

    def encode_with_control(self, text: str) -> list[int]:
        self.encoded.append(text)
        return self._tokenizer.encode_with_control(text)


@pytest.mark.parametrize(
    ("field", "count"),
    [("messages", LARGEST_NUM_MESSAGES), ("context", LARGEST_NUM_MESSAGES), ("tools", LARGEST_NUM_TOOLS)],
)
def test_long_lists_are_refused_by_their_length(codec: ChatCodec, field: str, count: int) -> None:
    reply = Scripted(codec).post(CHAT, {**HELLO, field: [{}] * (count + 1)})
    assert (reply.status, reply.json["error"]["param"]) == (400, field)
    assert str(count) in reply.json["error"]["message"]


def test_a_list_that_is_wrong_everywhere_has_one_fault(codec: ChatCodec) -> None:
    message = Scripted(codec).post(CHAT, {"messages": [5] * 20}).json["error"]["message"]
    assert message == "messages.0: Input should be a valid dictionary"


def test_too_many_biases_are_refused_before_they_are_read(codec: ChatCodec) -> None:
    body = {**HELLO, "logit_bias": {str(k): "x" for k in range(LARGEST_NUM_BIASES + 1)}}
    message = Scripted(codec).post(CHAT, body).json["error"]["message"]
    assert message.count("logit_bias") == 1
    assert str(LARGEST_NUM_BIASES) in message
