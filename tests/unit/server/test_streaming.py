"""Streams: comments in silence, clients that go away or stop reading, time limits.  spec: pitfalls 137 to 139."""

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from flash41.chat.conversation import ChatCodec
from flash41.chat.protocols import WireEvent
from flash41.server.settings import ServerSettings
from flash41.server.streaming import BODY_SENDER, COMMENT, ClientGoneError, EventStream, encoded, while_connected
from helpers.serving import CHAT, COMPLETIONS, HELLO, Scripted, call, run

JSON = {"content-type": "application/json"}
SLOW = {"token_seconds": 0.02}


def body(**fields: Any) -> bytes:
    return json.dumps({**HELLO, **fields}).encode()


def test_events_are_written_as_the_format_wants() -> None:
    events = [WireEvent(name=None, data='{"a":1}'), WireEvent(name="ping", data='{"é":2}')]
    assert encoded(events).decode() == 'data: {"a":1}\n\nevent: ping\ndata: {"é":2}\n\n'


def test_silence_is_broken_by_comments_and_clients_ignore_them(codec: ChatCodec) -> None:
    """Pitfall 139: a stream that thinks for long is not silent."""
    settings = ServerSettings(keep_alive_seconds=0.02)
    reply = Scripted(codec, "r</think>a", settings, playing={"token_seconds": 0.1}).post(
        CHAT, {**HELLO, "stream": True}
    )
    assert reply.parts.count(COMMENT) >= 3
    assert "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in reply.chunks) == "a"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_a_client_that_goes_away_aborts_its_requests(codec: ChatCodec, stream: bool, n: int, path: str) -> None:
    scripted = Scripted(codec, "a " * 200, playing=SLOW)
    given = {"prompt": "x", "max_tokens": 400} if path == COMPLETIONS else HELLO
    raw = json.dumps({**given, "stream": stream, "n": n}).encode()
    reply = run(call(scripted.app, "POST", path, raw, JSON, gone_after=2 if stream else 0))
    assert scripted.service.num_aborted == n
    assert scripted.app.context.gate.num_open == 0
    assert scripted.service.stats().engine.num_running == 0
    assert b"[DONE]" not in reply.body
    assert "flash41_http_disconnects_total 1.0" in scripted.get("/metrics").body.decode()


def test_a_request_that_takes_too_long_ends_with_an_error(codec: ChatCodec) -> None:
    settings = ServerSettings(request_timeout_seconds=0.1)
    scripted = Scripted(codec, "a " * 200, settings, playing=SLOW)
    whole = scripted.post(CHAT, HELLO)
    assert (whole.status, whole.json["error"]["code"]) == (504, "request_timeout")
    stream = scripted.post(CHAT, {**HELLO, "stream": True})
    assert stream.chunks[-1]["error"]["code"] == "request_timeout"
    assert stream.events[-1] == (None, "[DONE]")
    assert scripted.service.num_aborted == 2


def test_an_engine_that_is_gone_is_told_in_the_stream(codec: ChatCodec) -> None:
    scripted = Scripted(codec)
    scripted.service.is_ready = False
    stream = scripted.post(CHAT, {**HELLO, "stream": True})
    assert stream.chunks[-1]["error"]["type"] == "overloaded_error"


def test_a_client_that_stops_reading_counts_as_gone() -> None:
    ended: list[str] = []

    async def source() -> AsyncGenerator[bytes]:
        try:
            while True:
                yield b"x"
                await asyncio.sleep(0)
        finally:
            ended.append("source")

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body":
            await asyncio.sleep(60)

    async def receive() -> Any:
        await asyncio.sleep(60)

    async def work() -> None:
        stream = EventStream(
            source(), keep_alive_seconds=9, stall_seconds=0.05, headers={}, on_end=lambda: ended.append("end")
        )
        with pytest.raises(ClientGoneError):
            await stream({"type": "http"}, receive, send)

    run(work())
    assert ended == ["source", "end"]


def test_only_the_head_of_a_stream_goes_through_all_layers() -> None:
    layers, short_way = list[str](), list[bytes]()

    async def source() -> AsyncGenerator[bytes]:
        yield b"a"
        yield b"b"

    async def through_layers(message: Any) -> None:
        layers.append(message["type"])

    async def pass_on(message: Any) -> None:
        short_way.append(message["body"])

    async def work() -> None:
        stream = EventStream(source(), keep_alive_seconds=9, stall_seconds=9, headers={}, on_end=lambda: None)
        scope = {"type": "http", "state": {BODY_SENDER: pass_on}}
        await stream(scope, asyncio.Event().wait, through_layers)

    run(work())
    assert layers == ["http.response.start"]
    assert short_way == [b"a", b"b", b""]


def test_a_stream_whose_head_cannot_be_sent_still_ends() -> None:
    ended: list[str] = []

    async def source() -> AsyncGenerator[bytes]:
        yield b"x"

    async def send(message: Any) -> None:
        raise OSError("gone")

    async def work() -> None:
        stream = EventStream(
            source(), keep_alive_seconds=9, stall_seconds=9, headers={}, on_end=lambda: ended.append("end")
        )
        with pytest.raises(OSError, match="gone"):
            await stream({"type": "http"}, asyncio.Event().wait, send)

    run(work())
    assert ended == ["end"]


def test_work_is_cancelled_by_its_client_only() -> None:
    async def gone() -> Any:
        await asyncio.sleep(0.01)
        return {"type": "http.disconnect"}

    async def never() -> Any:
        await asyncio.sleep(60)

    async def work() -> None:
        with pytest.raises(ClientGoneError):
            async with while_connected(gone):
                await asyncio.sleep(60)
        async with while_connected(never):
            await asyncio.sleep(0)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01), while_connected(never):
                await asyncio.sleep(60)
        await asyncio.sleep(0)  # nothing of the cancellations is left

    run(work())


def test_a_client_that_goes_away_at_the_very_end_is_noticed_inside() -> None:
    async def at_once() -> Any:
        return {"type": "http.disconnect"}

    async def work() -> None:
        with pytest.raises(ClientGoneError):
            async with while_connected(at_once):
                await asyncio.sleep(0)
        await asyncio.sleep(0.01)

    run(work())
