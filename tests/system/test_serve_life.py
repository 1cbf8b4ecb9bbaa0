"""Two processes, one server: whichever is killed, the other one does not stay, and nobody waits without end."""

import json
import os
import signal
import threading
import time
from pathlib import Path

import httpx

from helpers.command_line import program
from helpers.server_process import ServerProcess, is_gone, serving

PATH = "/v1/chat/completions"
BODY = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 4000, "seed": 1}
SLOWEST_SECONDS = 10.0
"""Five times what the end of a process may take."""


def ask(server: ServerProcess, texts: list[str], *, stream: bool) -> threading.Thread:
    """A client that waits for its answer in a thread of its own."""

    def run() -> None:
        try:
            reply = httpx.post(f"{server.url}{PATH}", json={**BODY, "stream": stream}, timeout=60)
            texts.append(f"{reply.status_code} {reply.text}")
        except httpx.HTTPError as error:
            texts.append(type(error).__name__)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def until_running(server: ServerProcess, count: int) -> None:
    while httpx.get(f"{server.url}/v1/stats").json()["engine"]["num_running"] < count:
        time.sleep(0.02)


def test_an_engine_that_is_killed_ends_every_answer_with_an_error_and_the_server_with_status_1(
    tiny_directory: Path,
) -> None:
    with serving(tiny_directory) as server:
        streamed, whole = list[str](), list[str]()
        clients = [ask(server, streamed, stream=True), ask(server, whole, stream=False)]
        until_running(server, 2)
        os.kill(server.engine_pid, signal.SIGKILL)
        for client in clients:
            client.join(60)
        assert server.process.wait(SLOWEST_SECONDS) == 1
        (stream,) = streamed
        last, done = [line for line in stream.splitlines() if line.startswith("data: ")][-2:]
        assert stream.startswith("200 ")
        assert json.loads(last.removeprefix("data: "))["error"]["code"] == "engine_error"
        assert done == "data: [DONE]"
        assert whole[0].startswith("500 ")
        assert "Traceback" not in "".join(server.end_of_log())


def test_an_engine_whose_server_is_killed_ends_too(tiny_directory: Path) -> None:
    with serving(tiny_directory) as server:
        client = ask(server, [], stream=True)
        until_running(server, 1)
        engine_pid = server.engine_pid
        server.process.kill()
        server.process.wait(SLOWEST_SECONDS)
        assert is_gone(engine_pid, SLOWEST_SECONDS)
        client.join(60)
        assert "Traceback" not in "".join(server.end_of_log())


def test_what_the_engine_refuses_is_one_line_and_status_1() -> None:
    found = program(["serve", "--model", "nowhere"])
    assert found.returncode == 1
    assert found.stderr.startswith("error: ")
    assert "nowhere" in found.stderr
    assert "Traceback" not in found.stderr
    assert found.stdout == ""
