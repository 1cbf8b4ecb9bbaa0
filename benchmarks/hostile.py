"""What nobody well-meant sends: is it refused, and how fast?

    python benchmarks/hostile.py [--url URL]

sends each of the requests below to a server (without --url, to `flash41 serve` with the embedded default, which it
starts) and prints one JSON line for each, then one that joins them:

    {"case": "deep JSON", "status": 400, "seconds": 0.004}
    {"slowest_seconds": 0.31, "wrong": []}

What must hold: a status from 400 to 499 within a second, whatever is sent.  The exit status is 1 where it does not.
"""

import argparse
import contextlib
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

LIMIT_SECONDS = 1.0
PIECE_BYTES = 65_536
SERVE = "from flash41.cli.main import main; main()"
CHAT = "/v1/chat/completions"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """Bytes for one connection."""

    name: str
    head: bytes
    body: bytes = b""
    repeats: int = 1
    """How often the body is sent."""


def posted(name: str, body: bytes, path: str = CHAT) -> Attack:
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    return Attack(name=name, head=f"{head}content-length: {len(body)}\r\n\r\n".encode(), body=body)


def chat(name: str, **fields: object) -> Attack:
    body = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 1, **fields}
    return posted(name, json.dumps(body).encode())


def attacks(million: int = 10**6) -> Iterator[Attack]:
    post = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    mebibyte = b" " * 2**20
    yield Attack(name="100 MB body", head=post + b"content-length: 104857600\r\n\r\n", body=mebibyte, repeats=100)
    chunk = b"100000\r\n" + mebibyte + b"\r\n"
    yield Attack(
        name="100 MB body in chunks", head=post + b"transfer-encoding: chunked\r\n\r\n", body=chunk, repeats=100
    )
    yield posted("deep JSON", b'{"messages":' + b"[" * 500_000 + b"]" * 500_000 + b"}")
    yield posted("deep objects", b'{"messages":' + b'{"a":' * 100_000 + b"1" + b"}" * 100_000 + b"}")
    yield from (chat(f"temperature {number}", temperature=number) for number in (float("nan"), float("inf")))
    yield posted(
        "a number of a million digits", b'{"messages":[{"role":"user","content":"a"}],"seed":' + b"9" * million + b"}"
    )
    yield posted("invalid UTF-8", b'{"messages":[{"role":"user","content":"\xff\xfe\xc0\xaf"}]}')
    yield posted("a lone surrogate", b'{"messages":[{"role":"user","content":"\\ud800"}]}')
    yield chat("a million stop strings", stop=["a"] * million)
    yield chat("one stop string of 5 MB", stop="a" * 5_000_000)
    yield chat("a million biases", logit_bias={str(number): 1 for number in range(million)})
    yield chat("a million messages", messages=[{"role": "user"}] * million)
    yield chat("60,000 messages", messages=[{"role": "user", "content": ""}] * 60_000)
    yield chat("20 MB of text", messages=[{"role": "user", "content": "hello world " * (17 * million // 10)}])
    yield chat(
        "2,000 tools",
        tools=[{"type": "function", "function": {"name": f"f{k}"}} for k in range(2000)],
        tool_choice="required",
    )
    for url in ("http://169.254.169.254/latest", "file:///etc/passwd", "ftp://nowhere/x", "data:image/png;base64,AAAA"):
        picture = {"type": "image_url", "image_url": {"url": url}}
        yield chat(f"an image at {url[:9]}", messages=[{"role": "user", "content": [picture]}])
    yield posted("a million prompts", json.dumps({"prompt": ["a"] * million}).encode(), "/v1/completions")
    yield posted("a prompt of a million ids", json.dumps({"prompt": [5] * million}).encode(), "/v1/completions")
    yield posted(
        "20 MB to tokenize", json.dumps({"text": "hello world " * (17 * million // 10)}).encode(), "/v1/tokenize"
    )
    yield posted(
        "20 MB of raw text", json.dumps({"prompt": "hello world " * (17 * million // 10)}).encode(), "/v1/completions"
    )
    flood = b"".join(b"x-%d: 1\r\n" % number for number in range(100_000))
    yield Attack(name="100,000 headers", head=b"GET / HTTP/1.1\r\nhost: localhost\r\n", body=flood + b"\r\n")
    yield Attack(
        name="a header of 10 MB", head=b"GET / HTTP/1.1\r\nhost: localhost\r\nx: ", body=b"a" * 10**7 + b"\r\n\r\n"
    )
    yield Attack(name="a path of 10 MB", head=b"GET /", body=b"a" * 10**7 + b" HTTP/1.1\r\n\r\n")
    yield Attack(name="no HTTP", head=b"\x16\x03\x01 this is TLS\r\n\r\n")
    yield Attack(name="no host", head=b"GET / HTTP/1.1\r\n\r\n")
    yield Attack(name="a foreign host", head=b"GET / HTTP/1.1\r\nhost: evil.example\r\n\r\n")


def sent(address: tuple[str, int], attack: Attack) -> tuple[int | None, float]:
    """The status of the answer, None where the server hung up without one, and the seconds until then."""
    started, found = time.perf_counter(), b""
    with socket.create_connection(address, timeout=60) as connection:
        # A server that hangs up while it is flooded may have answered before.
        with contextlib.suppress(ConnectionError):
            for piece in (attack.head, *[attack.body] * attack.repeats):
                connection.sendall(piece)
        with contextlib.suppress(ConnectionError):
            while b"\r\n" not in found and (part := connection.recv(PIECE_BYTES)):
                found += part
    seconds = time.perf_counter() - started
    return (int(found.split(b" ", 2)[1]) if found.startswith(b"HTTP/1.1 ") else None), seconds


def measured(address: tuple[str, int], chosen: Sequence[Attack]) -> Iterator[dict[str, object]]:
    for attack in chosen:
        status, seconds = sent(address, attack)
        yield {"case": attack.name, "status": status, "seconds": round(seconds, 3)}


@contextlib.contextmanager
def served() -> Iterator[str]:
    command = [sys.executable, "-c", SERVE, "serve", "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    with process:
        assert process.stdout is not None
        try:
            yield next(line for line in process.stdout if line.startswith("listening at ")).split()[-1]
        finally:
            process.terminate()


def main() -> None:
    parser = argparse.ArgumentParser(description="What nobody well-meant sends.")
    parser.add_argument("--url", help="a server that is there; without it one is started")
    url = parser.parse_args().url
    wrong, slowest = list[object](), 0.0
    with contextlib.nullcontext(url) if url else served() as address:
        host, _, port = address.removeprefix("http://").rpartition(":")
        for found in measured((host, int(port)), list(attacks())):
            print(json.dumps(found), flush=True)
            status, seconds = found["status"], found["seconds"]
            assert isinstance(seconds, float)
            slowest = max(slowest, seconds)
            if seconds > LIMIT_SECONDS or not (status is None or 400 <= int(str(status)) < 500):
                wrong.append(found["case"])
    print(json.dumps({"slowest_seconds": slowest, "wrong": wrong}))
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
