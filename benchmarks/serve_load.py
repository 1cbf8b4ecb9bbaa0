"""The server under load: many streaming clients at once, some of which go away.

    python benchmarks/serve_load.py [--quick] [--clients N] [--tokens N] [--rounds N]

starts `flash41 serve` with the embedded default and prints JSON lines, the last of which joins what was found:

    {"round": 1, "survivors": 51, "gone": 13, "seconds": 21.3, ...}
    {"equal_to_solo": true, "leaks": {}, "http_overhead": 0.021, ...}

Each round is one load.  A fifth of the clients, chosen by a fixed seed, close their connection at a random token.  What
must hold:

- every survivor's text is, character for character, what the library gives for the same request alone;
- when a load is over, nothing is left: answers, requests, pages in use, tasks, open files, and after the first round
  memory, are back where they were;
- HTTP costs little: CPU seconds of all threads of the server but the engine's, over those of the engine's, while all
  clients stay.  CPU seconds are compared, since clients and server share this machine.

The exit status is 1 when one of the first two does not hold.
"""

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flash41 import LLM, SamplingParams, __version__
from flash41.engine.request import FinishReason

GONE_SHARE = 0.2
FULL = (64, 24, 3)
"""Clients, tokens of an answer, and rounds."""
QUICK = (10, 4, 2)
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

    def cpu_seconds(self) -> dict[str, float]:
        """Of every thread, by its number."""
        found = {}
        for task in Path(f"/proc/{self.process.pid}/task").iterdir():
            fields = (task / "stat").read_text().rpartition(")")[2].split()
            found[task.name] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        return found

    def held(self) -> dict[str, int]:
        """Everything that must be as before when nothing is going on."""
        stats, place = self.stats(), Path(f"/proc/{self.process.pid}")
        return {
            "open_answers": stats["open_answers"],
            "running": stats["engine"]["num_running"],
            "waiting": stats["engine"]["num_waiting"],
            "used_pages": stats["engine"]["num_used_pages"],
            "tasks": stats["tasks"],
            "files": len(list((place / "fd").iterdir())),
            "threads": len(list((place / "task").iterdir())),
        }

    def memory_bytes(self) -> int:
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

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
    parser.add_argument("--clients", type=int)
    parser.add_argument("--tokens", type=int)
    parser.add_argument("--rounds", type=int)
    arguments = parser.parse_args()
    num_clients, num_tokens, num_rounds = QUICK if arguments.quick else FULL
    wanted = asks(arguments.clients or num_clients, arguments.tokens or num_tokens)
    staying = [ask for ask in wanted if ask.leaves_after is None]
    llm = LLM(max_num_seqs=SLOTS)
    solo = [alone(llm, ask) for ask in staying]
    server = Server()
    try:
        found = rounds(server, wanted, solo, arguments.rounds or num_rounds)
        found |= measure(server, staying)
    finally:
        server.process.terminate()
        status = server.process.wait(60)
    ok = found["equal_to_solo"] and not found["leaks"] and status == 0
    print(json.dumps({**found, "exit_status": status, "clients": len(wanted), "version": __version__}))
    sys.exit(0 if ok else 1)


def rounds(server: Server, wanted: list[Ask], solo: list[str], count: int) -> dict[str, Any]:
    """Loads with clients that go away: are the others' texts right, and is everything given back?"""
    before, memory, is_equal = server.held(), list[int](), True
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
    leaks = {name: [before[name], now[name]] for name in before if now[name] != before[name]}
    if memory[-1] > memory[0] + MEMORY_SLACK_BYTES:
        leaks["memory_bytes"] = [memory[0], memory[-1]]
    return {"equal_to_solo": is_equal, "leaks": leaks}


def measure(server: Server, wanted: list[Ask]) -> dict[str, float]:
    """CPU seconds of engine and HTTP while all clients stay; the engine's thread is the one that works most."""
    before, tokens = server.cpu_seconds(), server.stats()["engine"]["num_generated_tokens"]
    asyncio.run(load(server.port, wanted))
    spent = [seconds - before.get(task, 0.0) for task, seconds in server.cpu_seconds().items()]
    tokens = server.stats()["engine"]["num_generated_tokens"] - tokens
    engine = max(spent)
    return {
        "http_overhead": round((sum(spent) - engine) / engine, 4),
        "engine_cpu_milliseconds_per_token": round(1000 * engine / tokens, 3),
    }


if __name__ == "__main__":
    main()
