"""HTTP on real sockets, as the library speaks it with the bounds that `run.config` gives it."""

import json
import socket
import time
from collections.abc import Callable, Iterator

import pytest

from flash41.chat.conversation import ChatCodec
from flash41.server.security import LARGEST_HEAD_BYTES
from helpers.scripted_server import listening_at
from helpers.serving import CHAT, HELLO, Scripted

PATIENCE_SECONDS = 20
PAUSE = b""
"""A piece behind which the client waits a moment, so that the server reads what came before it alone."""
HEALTH = b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n"
LAST = HEALTH.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n")
CHUNKED = (
    b"POST /v1/tokenize HTTP/1.1\r\nhost: localhost\r\n"
    b"content-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
)

Talk = Callable[..., bytes]


@pytest.fixture(scope="module")
def talk(codec: ChatCodec) -> Iterator[Talk]:
    """Sends pieces on one connection; all that comes back until the server closes it."""
    with listening_at(Scripted(codec)) as url:
        host, _, port = url.removeprefix("http://").rpartition(":")

        def talk(*pieces: bytes) -> bytes:
            with socket.create_connection((host, int(port)), timeout=PATIENCE_SECONDS) as connection:
                for piece in pieces:
                    connection.sendall(piece)
                    time.sleep(0.05 if piece == PAUSE else 0)
                found = b""
                while piece := connection.recv(65_536):
                    found += piece
                return found

        yield talk


def posted(path: str, body: object, *headers: bytes, version: bytes = b"1.1") -> tuple[bytes, bytes]:
    """Head and body of a request."""
    raw = json.dumps(body).encode()
    lines = [b"host: localhost", b"content-type: application/json", b"content-length: %d" % len(raw), *headers]
    return b"\r\n".join([b"POST %b HTTP/%b" % (path.encode(), version), *lines, b"\r\n"]), raw


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_pieces_of_any_size_are_requests_whose_answers_come_in_order(talk: Talk, size: int) -> None:
    whole = b"".join(
        [HEALTH, *posted("/v1/tokenize", {"text": "hello"}), HEALTH.replace(b"/health", b"/nowhere"), LAST]
    )
    found = talk(*(whole[at : at + size] for at in range(0, len(whole), size)))
    assert [int(part[:3]) for part in found.split(b"HTTP/1.1 ")[1:]] == [200, 200, 404, 200]
    assert found.count(b'"tokens"') == 1


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01 this is TLS\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost : localhost\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: localhost\r\nx: a\0b\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: localhost\r\nhost: elsewhere\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab",
        b"POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    ],
)
def test_what_is_no_http_gets_400_and_the_end(talk: Talk, data: bytes) -> None:
    """Two hosts would let whoever checks the first and whoever uses the second disagree."""
    assert talk(data).startswith(b"HTTP/1.1 400 Bad Request\r\n")


FLOODS = {
    "headers": (b"GET / HTTP/1.1\r\nhost: localhost\r\n", b"x-y: 1\r\n"),
    "one header": (b"GET / HTTP/1.1\r\nhost: localhost\r\nx: ", b"y"),
    "a path": (b"GET /", b"y"),
    "a method": (b"", b"G"),
    "trailers": (CHUNKED + b"1\r\na\r\n0\r\n", b"x-y: 1\r\n"),
    "the size of a chunk": (CHUNKED + b"1;x=", b"y"),
}


@pytest.mark.parametrize("name", FLOODS)
def test_what_does_not_end_is_cut_off_at_the_bound(talk: Talk, name: str) -> None:
    begin, more = FLOODS[name]
    assert talk(begin, more * (LARGEST_HEAD_BYTES // len(more) + 1)).startswith(b"HTTP/1.1 400 ")


def test_a_head_that_comes_slowly_may_be_as_large_as_one_that_comes_at_once(talk: Talk) -> None:
    head = LAST.replace(b"\r\n\r\n", b"\r\nx: ") + b"y" * (LARGEST_HEAD_BYTES - 200)
    assert talk(head, PAUSE, b"\r\n\r\n").startswith(b"HTTP/1.1 200 ")


def test_a_client_that_asks_for_another_protocol_is_answered_in_this_one(talk: Talk) -> None:
    """Java's client asks for HTTP/2 with its first request, which has a body like any other."""
    asked = posted("/v1/tokenize", {"text": "hello"}, b"connection: upgrade", b"upgrade: h2c")
    found = talk(*asked, LAST)
    assert found.count(b"HTTP/1.1 200 OK") == 2
    assert b'"tokens"' in found


def test_a_client_that_waits_for_permission_to_send_gets_it_once(talk: Talk) -> None:
    head, raw = posted("/v1/tokenize", {"text": "hello"}, b"expect: 100-continue", b"connection: close")
    found = talk(head, raw)
    assert found.startswith(b"HTTP/1.1 100 ")
    assert [part[:3] for part in found.split(b"HTTP/1.1 ")[1:]] == [b"100", b"200"]


def test_a_stream_over_http_1_0_has_no_chunks_and_ends_with_its_connection(talk: Talk) -> None:
    body = {**HELLO, "stream": True, "seed": 1}
    old, new = (talk(*posted(CHAT, body, b"connection: close", version=version)) for version in (b"1.0", b"1.1"))
    head, _, events = old.partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head
    assert [block[:6] for block in events.split(b"\n\n")[:-1]] == [b"data: "] * events.count(b"\n\n")
    assert events.endswith(b"data: [DONE]\n\n")
    assert b"\r\ntransfer-encoding: chunked\r\n" in new.partition(b"\r\n\r\n")[0].lower() + b"\r\n"
    assert new.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
