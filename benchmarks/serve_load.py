"""The server under load: many streaming clients at once, some of which go away.

    python benchmarks/serve_load.py [--quick] [--clients N] [--tokens N] [--rounds N] [--long N] [--turns N]

starts `flash41 serve` with the embedded default and prints JSON lines, the last of which joins what was found:

    {"round": 1, "survivors": 51, "gone": 13, "seconds": 21.3, ...}
    {"turn": 1, "library_milliseconds": 2.41, "http_milliseconds": 2.44, ...}
    {"equal_to_solo": true, "leaks": {}, "http_overhead": 0.012, "added_time": 0.018, ...}

Each round is one load.  A fifth of the clients, chosen by a fixed seed, close their connection at a random token.  What
must hold:

- every survivor's text is, character for character, what the library gives for the same request alone;
- when a load is over, nothing is left: answers, requests, pages in use, tasks, and of both processes open files,
  threads, and after the first round memory, are back where they were.

Then the same requests, with longer answers and nobody leaving, are computed by the library in this process and through
HTTP in turns (library, HTTP, library, ...), with the same slots.  The library computes ids only and makes no text of
them; the engine is all that works then.  Each turn through HTTP is held against the mean of the library's two beside
it, since a machine's speed moves from minute to minute; of these ratios the median counts:

- `http_overhead` is what HTTP adds to the engine's work per token: CPU seconds of the engine's process under HTTP over
  those of the library, less 1; `step_overhead` is the same per step, as a step under HTTP may hold other requests (the
  first ones begin before all have come; `library_steps` and `http_steps` tell how many there were);
- `added_time` is what it adds to the time of a token: wall-clock seconds through HTTP, from the first client to the end
  of the last, over those of the library, less 1;
- the CPU of the HTTP process and of the clients, which share the machine, stand beside them per token;
- `spread` is how much the library's CPU per token differs from its own next turn, by the median: differences that are
  not larger say nothing.

What HTTP itself does in the engine's process is about a hundredth of a step.  A larger `http_overhead` probably comes
from sharing cores and their caches with HTTP and the clients; users see it no less.  Where cores are busy otherwise, or
where there is one, `added_time` also counts what waits for a core.  The exit status is 1 when a text differs, something
is left, or the server's status is not 0.
"""

import argparse
import asyncio
import json
import os
import random
import statistics
import subprocess
import sys
import time
import urllib.request
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from flash41 import LLM, SamplingParams, __version__
from flash41.engine.request import FinishReason

GONE_SHARE = 0.2
FULL = (64, 24, 3, 32, 15)
"""Clients, tokens of an answer, and rounds; tokens of a longer answer, and turns."""
QUICK = (10, 4, 2, 8, 1)
"""The same with --quick."""
SLOTS = 8
SETTLE_SECONDS = 20.0
MEMORY_SLACK_BYTES = 8 * 2**20
"""What an allocator may keep from one load to the next."""
SERVE = "from flash41.cli.main import main; main()"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What one client wants."""

    body: dict[str, Any]
    leaves_after: int | None
    """Chunks behind which it goes away; None stays."""


def asks(num_clients: int, num_tokens: int) -> list[Ask]:
    draw = random.Random(41)
    leaving = set(draw.sample(range(num_clients), round(num_clients * GONE_SHARE)))
    words = ["river", "mountain", "city", "house", "garden", "window", "door", "book"]
    return [
        Ask(
            body={
                "messages": [{"role": "user", "content": " ".join(draw.choices(words, k=draw.randint(1, 12)))}],
                "max_tokens": num_tokens,
                "seed": number,
                "stream": True,
            },
            leaves_after=draw.randint(1, num_tokens - 1) if number in leaving else None,
        )
        for number in range(num_clients)
    ]


async def client(port: int, ask: Ask) -> str | None:
    """The joined text of one stream, or None for a client that went away."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    raw = json.dumps(ask.body).encode()
    head = "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    writer.write(f"{head}connection: close\r\ncontent-length: {len(raw)}\r\n\r\n".encode() + raw)
    text, num_chunks = "", 0
    try:
        async for line in reader:
            if not line.startswith(b"data: {"):
                continue
            chunk, num_chunks = json.loads(line[6:]), num_chunks + 1
            delta = chunk["choices"][0]["delta"]
            text += (delta.get("reasoning_content") or "") + (delta.get("content") or "")
            if ask.leaves_after is not None and num_chunks >= ask.leaves_after:
                return None
    finally:
        writer.close()
    return text


async def load(port: int, wanted: list[Ask]) -> list[str | None]:
    return await asyncio.gather(*(client(port, ask) for ask in wanted))


class Server:
    """`flash41 serve` as a process."""

    def __init__(self) -> None:
        command = [sys.executable, "-c", SERVE, "serve", "--port", "0", "--max-num-seqs", str(SLOTS)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert self.process.stdout is not None
        address = next(line for line in self.process.stdout if line.startswith("listening at "))
        self.port = int(address.rpartition(":")[2])

    def stats(self) -> dict[str, Any]:
        with urllib.request.urlopen(f"http://localhost:{self.port}/v1/stats") as reply:
            found: dict[str, Any] = json.load(reply)
        return found

    @property
    def pids(self) -> dict[str, int]:
        """The process that speaks HTTP, and its child that computes."""
        parent = self.process.pid
        (engine,) = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
        return {"http": parent, "engine": int(engine)}

    def cpu_seconds(self) -> dict[str, float]:
        found = {}
        for name, pid in self.pids.items():
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            found[name] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        return found

    def held(self) -> dict[str, int]:
        """Everything that must be as before when nothing is going on."""
        stats = self.stats()
        places = {name: Path(f"/proc/{pid}") for name, pid in self.pids.items()}
        return {
            "open_answers": stats["open_answers"],
            "running": stats["engine"]["num_running"],
            "waiting": stats["engine"]["num_waiting"],
            "used_pages": stats["engine"]["num_used_pages"],
            "tasks": stats["tasks"],
            **{f"{name}_files": len(list((place / "fd").iterdir())) for name, place in places.items()},
            **{f"{name}_threads": len(list((place / "task").iterdir())) for name, place in places.items()},
        }

    def memory_bytes(self) -> dict[str, int]:
        size = os.sysconf("SC_PAGE_SIZE")
        return {name: int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * size for name, pid in self.pids.items()}

    def settled(self, before: dict[str, int]) -> dict[str, int]:
        """What is held when it has come down to `before`, or after a while."""
        deadline = time.monotonic() + SETTLE_SECONDS
        while (now := self.held()) != before and time.monotonic() < deadline:
            time.sleep(0.1)
        return now


def alone(llm: LLM, ask: Ask) -> str:
    """The text of one request that the library computes alone."""
    conversation = llm.codec.convert(ask.body)
    params = SamplingParams(max_tokens=ask.body["max_tokens"], seed=ask.body["seed"])
    watcher, reason = llm.chat_watcher(params, conversation), None
    for event in llm.stream(llm.codec.encode(conversation).ids, params):
        watcher.push(event.token.token_id)
        reason = event.finish_reason
    found = watcher.finish("length" if reason is FinishReason.LENGTH else "stop")
    return found.reasoning + found.content


def main() -> None:
    parser = argparse.ArgumentParser(description="The server under load.")
    parser.add_argument("--quick", action="store_true", help="a small load; shows that everything runs")
    for name in ("clients", "tokens", "rounds", "long", "turns"):
        parser.add_argument(f"--{name}", type=int)
    arguments = parser.parse_args()
    known = QUICK if arguments.quick else FULL
    given = (arguments.clients, arguments.tokens, arguments.rounds, arguments.long, arguments.turns)
    num_clients, num_tokens, num_rounds, num_long, num_turns = (a or b for a, b in zip(given, known, strict=True))
    wanted = asks(num_clients, num_tokens)
    llm = LLM(max_num_seqs=SLOTS)
    solo = [alone(llm, ask) for ask in wanted if ask.leaves_after is None]
    server = Server()
    try:
        found = rounds(server, wanted, solo, num_rounds)
        found |= compared(llm, server, asks(num_clients, num_long), num_turns)
    finally:
        with server.process as process:  # closes its pipe
            process.terminate()
            status = process.wait(60)
    ok = found["equal_to_solo"] and not found["leaks"] and status == 0
    print(json.dumps({**found, "exit_status": status, "clients": len(wanted), "version": __version__}))
    sys.exit(0 if ok else 1)


def rounds(server: Server, wanted: list[Ask], solo: list[str], count: int) -> dict[str, Any]:
    """Loads with clients that go away: are the others' texts right, and is everything given back?"""
    before, memory, is_equal = server.held(), list[dict[str, int]](), True
    for number in range(1, count + 1):
        started = time.perf_counter()
        texts = asyncio.run(load(server.port, wanted))
        seconds = time.perf_counter() - started
        survivors = [text for text, ask in zip(texts, wanted, strict=True) if ask.leaves_after is None]
        is_equal &= survivors == solo
        now = server.settled(before)
        memory.append(server.memory_bytes())
        gone = sum(text is None for text in texts)
        line = {"round": number, "survivors": len(survivors), "gone": gone, "seconds": round(seconds, 2)}
        print(json.dumps({**line, "memory_bytes": memory[-1]}), flush=True)
    leaks: dict[str, Any] = {name: [before[name], now[name]] for name in before if now[name] != before[name]}
    for name, first in memory[0].items():
        if memory[-1][name] > first + MEMORY_SLACK_BYTES:
            leaks[f"{name}_memory_bytes"] = [first, memory[-1][name]]
    return {"equal_to_solo": is_equal, "leaks": leaks}


Figures = dict[str, float]
"""Milliseconds per token, by what they are; and steps."""


class StepCounter:
    """Counts the steps of an engine."""

    def __init__(self, llm: LLM) -> None:
        self.count = 0
        self._step = llm.engine.step
        llm.engine.step = self.step

    def step(self) -> Any:
        self.count += 1
        return self._step()


def by_library(llm: LLM, steps: StepCounter, wanted: list[Ask]) -> Figures:
    """All requests at once in this process."""
    requests = []
    for ask in wanted:
        params = SamplingParams(max_tokens=ask.body["max_tokens"])
        requests.append(llm.request(llm.codec.encode(llm.codec.convert(ask.body)).ids, params, ask.body["seed"]))
    before, wall, spent = steps.count, time.perf_counter(), time.process_time()
    tokens = sum(len(answer.tokens) for answer in llm.as_finished(requests))
    wall, spent = time.perf_counter() - wall, time.process_time() - spent
    count = steps.count - before
    found = per_token(tokens, library=wall, library_cpu=spent)
    return {**found, "library_steps": count, "library_step_cpu_milliseconds": round(1000 * spent / count, 3)}


def by_http(server: Server, wanted: list[Ask]) -> Figures:
    """All requests at once by clients of the server, all of them in this process."""
    before, first = server.cpu_seconds(), server.stats()["engine"]
    wall, spent = time.perf_counter(), time.process_time()
    asyncio.run(load(server.port, wanted))
    wall, spent = time.perf_counter() - wall, time.process_time() - spent
    after, last = server.cpu_seconds(), server.stats()["engine"]
    tokens, count = (last[name] - first[name] for name in ("num_generated_tokens", "num_steps"))
    cpu = {name: after[name] - before[name] for name in after}
    found = per_token(tokens, http=wall, engine_cpu=cpu["engine"], http_process_cpu=cpu["http"], clients_cpu=spent)
    return {**found, "http_steps": count, "engine_step_cpu_milliseconds": round(1000 * cpu["engine"] / count, 3)}


def per_token(tokens: int, **seconds: float) -> Figures:
    return {f"{name}_milliseconds": round(1000 * value / tokens, 3) for name, value in seconds.items()}


def compared(llm: LLM, server: Server, wanted: list[Ask], num_turns: int) -> dict[str, float]:
    """The library and HTTP in turns, the library first and last."""
    staying = [Ask(body=ask.body, leaves_after=None) for ask in wanted]
    steps = StepCounter(llm)
    library, http = [by_library(llm, steps, staying)], list[Figures]()
    for number in range(1, num_turns + 1):
        http.append(by_http(server, staying))
        library.append(by_library(llm, steps, staying))
        print(json.dumps({"turn": number, **http[-1], **library[-1]}), flush=True)
    found = {name: statistics.median(turn[name] for turn in turns) for turns in (library, http) for name in turns[0]}

    def added(ours: str, theirs: str) -> float:
        beside = [(before[theirs] + after[theirs]) / 2 for before, after in pairwise(library)]
        ratios = [turn[ours] / alone for turn, alone in zip(http, beside, strict=True)]
        return round(statistics.median(ratios) - 1, 4)

    own = [turn["library_cpu_milliseconds"] for turn in library]
    spread = statistics.median(abs(after / before - 1) for before, after in pairwise(own))
    return {
        "http_overhead": added("engine_cpu_milliseconds", "library_cpu_milliseconds"),
        "step_overhead": added("engine_step_cpu_milliseconds", "library_step_cpu_milliseconds"),
        "added_time": added("http_milliseconds", "library_milliseconds"),
        "spread": round(spread, 4),
        **found,
    }


if __name__ == "__main__":
    main()
