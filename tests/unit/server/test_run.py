"""The life of a server, inside this process: real sockets, real signals, a small random model in a thread."""

import asyncio
import json
import os
import signal
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from flash41.engine.llm import LLM
from flash41.errors import ConfigError
from flash41.server import run
from flash41.server.engine_client import EngineClient
from flash41.server.engine_loop import EngineLoop
from flash41.server.run import ServerProcess, listening
from flash41.server.settings import ServerSettings
from helpers.engine_thread import engine_over

BODY = {"messages": [{"role": "user", "content": "hello"}], "stream": True, "seed": 1}


@pytest.fixture(scope="module")
def llm(tiny_directory: Path) -> LLM:
    return LLM(tiny_directory, max_num_seqs=4)


async def request(url: str, method: str, path: str, body: object = None) -> tuple[int, str]:
    """Status and body of one request on a connection of its own."""
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    raw = json.dumps(body).encode()
    head = f"{method} {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n"
    head += f"content-type: application/json\r\ncontent-length: {len(raw)}\r\n\r\n"
    writer.write(head.encode() + raw)
    found = await reader.read()
    writer.close()
    return int(found.split(b" ", 2)[1]), found.decode()


Work = Callable[[ServerProcess, str], Awaitable[Any]]


def lived(
    llm: LLM, settings: ServerSettings, work: Work, behind: Callable[[], object] = lambda: None
) -> tuple[int, Any]:
    """Exit status of a server, and the result of what was done meanwhile; `behind` is called when it has ended."""

    async def main(engine: EngineClient) -> tuple[int, Any]:
        found = asyncio.get_running_loop().create_future()
        process = ServerProcess(engine, settings)
        living = asyncio.create_task(process.run(found.set_result))
        async with asyncio.timeout(60):
            result = await work(process, await found)
            return await living, result

    with engine_over(llm) as (engine, _):
        try:
            return asyncio.run(main(engine))
        finally:
            behind()


async def started(process: ServerProcess, count: int = 1) -> None:
    """Waits until `count` answers were asked for and all that can run do."""
    context = process.app.context
    running = min(count, context.service.facts.max_num_seqs)
    while context.gate.num_open < count or context.service.stats().engine.num_running < running:
        await asyncio.sleep(0.01)


def settings(**changes: Any) -> ServerSettings:
    return ServerSettings(**{"port": 0, "grace_seconds": 30.0} | changes)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_open_answers_finish_and_ends_with_status_0(llm: LLM, number: int) -> None:
    async def work(process: ServerProcess, url: str) -> Any:
        answers = [
            asyncio.create_task(request(url, "POST", "/v1/chat/completions", BODY | {"max_tokens": 12}))
            for _ in range(6)
        ]
        await started(process, 6)
        os.kill(os.getpid(), number)
        await asyncio.sleep(0.05)
        late = await request(url, "POST", "/v1/chat/completions", BODY)
        ready = await request(url, "GET", "/ready")
        alive = await request(url, "GET", "/health")
        return await asyncio.gather(*answers), late, ready, alive

    status, (answers, late, ready, alive) = lived(llm, settings(), work)
    assert status == 0
    assert all(code == 200 and '"finish_reason":"length"' in text and "[DONE]" in text for code, text in answers)
    assert (late[0], ready[0], alive[0]) == (503, 503, 200)
    assert "retry-after" in late[1]


def test_what_is_open_when_the_grace_time_is_over_gets_a_last_event(llm: LLM) -> None:
    async def work(process: ServerProcess, url: str) -> Any:
        answers = [asyncio.create_task(request(url, "POST", "/v1/chat/completions", BODY)) for _ in range(6)]
        whole = asyncio.create_task(request(url, "POST", "/v1/chat/completions", BODY | {"stream": False}))
        await started(process, 7)
        process.end()
        return await asyncio.gather(*answers), await whole

    status, (answers, whole) = lived(llm, settings(grace_seconds=0.2), work)
    assert status == 0
    for _, text in answers:
        *_, last, done = [line for line in text.splitlines() if line.startswith("data: ")]
        assert "shutting down" in last
        assert done == "data: [DONE]"
    assert whole[0] == 503
    assert "shutting down" in whole[1]


def test_a_second_signal_ends_the_grace_time(llm: LLM) -> None:
    async def work(process: ServerProcess, url: str) -> Any:
        answer = asyncio.create_task(request(url, "POST", "/v1/chat/completions", BODY))
        await started(process)
        process.end()
        await asyncio.sleep(0.1)
        assert not answer.done()
        process.end()
        return await answer

    status, (_, text) = lived(llm, settings(grace_seconds=1000.0), work)
    assert (status, "shutting down" in text) == (0, True)


def test_a_step_without_end_keeps_nobody_waiting(
    llm: LLM, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    free, step = threading.Event(), llm.engine.runner.run

    def stuck(batch: Any) -> Any:
        free.wait(30)
        return step(batch)

    monkeypatch.setattr(llm.engine.runner, "run", stuck)

    async def work(process: ServerProcess, url: str) -> Any:
        answer = asyncio.create_task(request(url, "POST", "/v1/chat/completions", BODY))
        while not process.app.context.gate.num_open:
            await asyncio.sleep(0.01)
        process.end()
        return await answer

    status, (_, text) = lived(llm, settings(grace_seconds=0.5), work, free.set)
    assert (status, "shutting down" in text) == (0, True)
    assert "cut off" in caplog.text


def test_an_engine_that_dies_ends_the_server_with_status_1(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise SystemError("unforeseen")

    async def work(process: ServerProcess, url: str) -> Any:
        answer = asyncio.create_task(request(url, "POST", "/v1/chat/completions", BODY))
        await started(process)
        monkeypatch.setattr(EngineLoop, "_publish", broken)
        return await answer

    status, (_, text) = lived(llm, settings(), work)
    assert status == 1
    assert "engine_error" in text


def test_an_address_that_is_taken_is_told(llm: LLM) -> None:
    with listening(settings()) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"127.0.0.1:{port}"):
            listening(settings(port=port))
        with engine_over(llm) as (engine, _), pytest.raises(ConfigError, match=f"127.0.0.1:{port}"):
            run.serve(engine, settings(port=port), lambda _: None)


@pytest.mark.parametrize(("host", "expected"), [("127.0.0.1", "http://127.0.0.1:"), ("::1", "http://[::1]:")])
def test_the_address_is_one_a_browser_takes(host: str, expected: str) -> None:
    try:
        listener = listening(settings(host=host))
    except ConfigError:
        pytest.skip("this machine has no such address")
    with listener:
        assert run.url(host, listener).startswith(expected)
