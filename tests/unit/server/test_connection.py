"""One connection, without sockets: bytes in, bytes out, and an application that tells what it was asked."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import uvicorn
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.types import Message, Receive, Scope, Send
from uvicorn.server import ServerState

from flash41.server.connection import MOST_WAITING, Connection
from flash41.server.exchange import LARGEST_BACKLOG_BYTES, head_of
from flash41.server.security import LARGEST_HEAD_BYTES

HEAD = b"POST /a%20b?c=d HTTP/1.1\r\nHost: x\r\nX-Case: Kept\r\nContent-Length: 5\r\n\r\n"
GET = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"


class Wire(asyncio.Transport):
    """A client's end, as the connection sees it."""

    def __init__(self) -> None:
        super().__init__({"peername": ("1.2.3.4", 5), "sockname": ("127.0.0.1", 80)})
        self.written = b""
        self.is_closed = self.is_cut = False
        self.reads = True

    def write(self, data: Any) -> None:
        assert not self.is_closed, "written behind the end"
        self.written += data

    def close(self) -> None:
        self.is_closed = True

    def abort(self) -> None:
        self.is_closed = self.is_cut = True

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True


class Echo:
    """Answers with the bodies it got; `length` tells the length of the answer before it, and so sends it whole."""

    def __init__(self, *, length: bool = True, status: int = 200) -> None:
        self.scopes: list[Scope] = []
        self.bodies: list[bytes] = []
        self.ends: list[str] = []
        self.goes_on = asyncio.Event()
        self.goes_on.set()
        self._length, self._status = length, status

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scopes.append(scope)
        body, more = b"", True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                self.ends.append("early")
                return
            body, more = body + message["body"], message["more_body"]
        self.bodies.append(body)
        await self.goes_on.wait()
        headers = [(b"content-length", str(len(body)).encode())] if self._length else []
        await send({"type": "http.response.start", "status": self._status, "headers": headers})
        for number in range(len(body)):
            await send({"type": "http.response.body", "body": body[number : number + 1], "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
        self.ends.append((await receive())["type"])


Work = Callable[[Connection, Wire, Any], Awaitable[Any]]


def spoken(work: Work, app: Any = None, keep_alive_seconds: float = 5) -> tuple[Wire, Any]:
    """A connection to an application, and what `work` does with it."""

    async def main() -> tuple[Wire, Any]:
        found = Echo() if app is None else app
        config = uvicorn.Config(found, log_config=None, proxy_headers=False, timeout_keep_alive=keep_alive_seconds)
        state = ServerState()
        config.load()
        connection, wire = Connection(config, state, {}), Wire()
        connection.connection_made(wire)
        result = await work(connection, wire, found)
        connection.connection_lost(None)
        async with asyncio.timeout(5):
            while state.tasks:
                await asyncio.sleep(0)
        assert not state.connections
        return wire, result

    return asyncio.run(main())


async def settled() -> None:
    for _ in range(12):
        await asyncio.sleep(0)


def talk(*pieces: bytes, app: Any = None) -> tuple[Wire, Any]:
    async def work(connection: Connection, wire: Wire, found: Any) -> Any:
        for piece in pieces:
            if not wire.is_closed:
                connection.data_received(piece)
            await settled()
        return found

    return spoken(work, app)


def test_a_request_is_told_as_asgi_has_it() -> None:
    _, app = talk(HEAD + b"hello")
    (scope,) = app.scopes
    assert scope["method"] == "POST"
    assert (scope["path"], scope["raw_path"], scope["query_string"]) == ("/a b", b"/a%20b", b"c=d")
    assert scope["headers"] == [(b"host", b"x"), (b"x-case", b"Kept"), (b"content-length", b"5")]
    assert (scope["http_version"], scope["client"], scope["server"]) == ("1.1", ("1.2.3.4", 5), ("127.0.0.1", 80))
    assert app.bodies == [b"hello"]
    assert app.ends == ["http.disconnect"]


@given(st.lists(st.integers(1, len(HEAD) + 4), max_size=8))
@settings(max_examples=30, deadline=None)
def test_pieces_of_any_size_are_one_request(cuts: list[int]) -> None:
    whole, places = HEAD + b"hello", [0, *sorted(cuts), len(HEAD) + 5]
    wire, app = talk(*(whole[a:b] for a, b in itertools.pairwise(places)))
    assert app.bodies == [b"hello"]
    assert wire.written.endswith(b"\r\n\r\nhello")


def test_an_answer_of_known_length_leaves_with_its_head() -> None:
    wire, _ = talk(HEAD + b"hello")
    assert wire.written == b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello"
    assert not wire.is_closed


def test_an_answer_of_unknown_length_is_chunked() -> None:
    wire, _ = talk(HEAD + b"hello", app=Echo(length=False))
    head, _, body = wire.written.partition(b"\r\n\r\n")
    assert head == b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked"
    assert body == b"".join(b"1\r\n%c\r\n" % letter for letter in b"hello") + b"0\r\n\r\n"


def test_http_1_0_gets_no_chunks_and_the_end_of_the_connection() -> None:
    old = HEAD.replace(b"HTTP/1.1", b"HTTP/1.0").replace(b"\r\n\r\n", b"\r\nConnection: keep-alive\r\n\r\n")
    wire, _ = talk(old + b"hello", app=Echo(length=False))
    assert wire.written == b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nhello"
    assert wire.is_closed


@pytest.mark.parametrize(("method", "status"), [(b"HEAD", 200), (b"GET", 204), (b"GET", 304)])
def test_what_has_no_body_gets_none(method: bytes, status: int) -> None:
    wire, _ = talk(GET.replace(b"GET", method), app=Echo(length=False, status=status))
    head, _, body = wire.written.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status)
    assert body == b""
    assert (b"chunked" in head) == (status == 200)


def test_connection_close_is_kept() -> None:
    wire, _ = talk(GET.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n"))
    assert b"\r\nconnection: close\r\n" in wire.written
    assert wire.is_closed


def test_one_answer_follows_the_other_however_early_requests_come() -> None:
    async def work(connection: Connection, wire: Wire, app: Echo) -> None:
        app.goes_on.clear()
        connection.data_received(b"".join(HEAD + b"%05d" % number for number in range(3)))
        await settled()
        assert app.bodies == [b"00000"]
        assert not wire.reads  # until those that wait have had their turn
        app.goes_on.set()
        for _ in range(4):
            await settled()
        assert app.bodies == [b"00000", b"00001", b"00002"]
        assert [part[:5] for part in wire.written.split(b"\r\n\r\n")[1:]] == app.bodies
        assert wire.reads

    spoken(work)


def test_requests_sent_too_far_ahead_end_the_connection() -> None:
    async def work(connection: Connection, wire: Wire, app: Echo) -> None:
        app.goes_on.clear()
        connection.data_received(GET * (MOST_WAITING + 1))
        await settled()
        assert not wire.is_closed
        connection.data_received(GET)
        assert wire.is_cut
        assert wire.written == b""
        app.goes_on.set()
        connection.connection_lost(None)

    spoken(work)


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01 this is TLS\r\n\r\n",
        b"CONNECT a:1 HTTP/1.1\r\nhost: x\r\n\r\n",
        b"GET / HTTP/3.0\r\nhost: x\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\nhost: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost : x\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: x\r\n folded: y\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: x\r\nx: a\0b\r\n\r\n",
        b"GET / HTTP/1.1\nhost: x\n\n",
        b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab",
        b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: gzip\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nxyz\r\n",
    ],
)
def test_what_is_no_http_gets_400_and_the_end(data: bytes) -> None:
    wire, app = talk(data)
    assert wire.written.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert wire.written.endswith(b"invalid HTTP request")
    assert wire.is_closed
    assert app.bodies == []


def test_what_is_no_http_behind_a_begun_answer_only_ends() -> None:
    async def streaming(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"a", "more_body": True})
        await receive()
        await receive()

    wire, _ = talk(GET, b"\0\0\0", app=streaming)
    assert wire.is_cut
    assert wire.written.endswith(b"1\r\na\r\n")


FLOODS = {
    "headers": (b"GET / HTTP/1.1\r\nhost: x\r\n", b"x-y: 1\r\n" * 1000, 431),
    "one header": (b"GET / HTTP/1.1\r\nhost: x\r\nx: ", b"y" * 8000, 431),
    "a path": (b"GET /", b"y" * 8000, 431),
    "a method": (b"G", b"", 400),
    "trailers": (
        b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n0\r\n",
        b"x-y: 1\r\n" * 1000,
        400,
    ),
    "the size of a chunk": (
        b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n1;x=",
        b"y" * 8000,
        400,
    ),
}


@pytest.mark.parametrize("name", FLOODS)
def test_floods_are_cut_off_at_the_bound(name: str) -> None:
    head, piece, status = FLOODS[name]

    async def work(connection: Connection, wire: Wire, app: Echo) -> int:
        connection.data_received(head)
        sent = 0
        while piece and not wire.is_closed and sent < 10 * LARGEST_HEAD_BYTES:
            connection.data_received(piece)
            sent += len(piece)
            await settled()
        if not piece:
            connection.data_received(b"\x01")
        return sent

    wire, sent = spoken(work)
    assert wire.is_closed
    assert wire.written.startswith(b"HTTP/1.1 %d " % status)
    assert sent <= LARGEST_HEAD_BYTES + len(piece)


def test_trailers_become_no_headers() -> None:
    chunked = b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
    _, app = talk(chunked + b"5\r\nhello\r\n0\r\nx-api-key: stolen\r\n\r\n")
    assert app.bodies == [b"hello"]
    assert [name for name, _ in app.scopes[0]["headers"]] == [b"host", b"transfer-encoding"]


@pytest.mark.parametrize("upgrade", [b"h2c", b"websocket"])
def test_another_protocol_is_not_spoken_and_the_body_is_read(upgrade: bytes) -> None:
    asked = HEAD.replace(b"\r\n\r\n", b"\r\nconnection: upgrade\r\nupgrade: " + upgrade + b"\r\n\r\n")
    for pieces in ([asked + b"hello" + GET], [asked[:9], asked[9:], b"hel", b"lo", GET]):
        wire, app = talk(*pieces)
        assert app.bodies == [b"hello", b""]
        assert [name for name, _ in app.scopes[0]["headers"]] == [b"host", b"x-case", b"content-length", b"connection"]
        assert wire.written.count(b"HTTP/1.1 200 OK") == 2


def test_a_client_that_waits_for_permission_to_send_gets_it_once() -> None:
    asked = HEAD.replace(b"\r\n\r\n", b"\r\nexpect: 100-continue\r\n\r\n")
    wire, app = talk(asked, b"hello")
    assert wire.written.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n")
    assert app.bodies == [b"hello"]


def test_a_body_that_nobody_reads_is_not_taken_from_the_wire() -> None:
    async def deaf(scope: Scope, receive: Receive, send: Send) -> None:
        await asyncio.sleep(60)

    async def work(connection: Connection, wire: Wire, app: Any) -> None:
        connection.data_received(HEAD.replace(b"5", b"9999999"))
        connection.data_received(b"a" * (LARGEST_BACKLOG_BYTES + 1))
        assert not wire.reads
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()

    spoken(work, deaf)


def test_a_client_that_reads_slowly_is_waited_for() -> None:
    async def work(connection: Connection, wire: Wire, app: Echo) -> None:
        connection.pause_writing()
        connection.data_received(HEAD + b"hello")
        await settled()
        assert wire.written == b""
        connection.resume_writing()
        await settled()
        assert wire.written.endswith(b"hello")

    spoken(work)


def test_a_client_that_goes_away_is_told_to_the_application() -> None:
    async def work(connection: Connection, wire: Wire, app: Echo) -> None:
        connection.data_received(HEAD)
        await settled()
        connection.connection_lost(None)
        await settled()
        assert app.ends == ["early"]
        assert wire.written == b""

    spoken(work)


def test_an_application_that_stops_in_the_middle_closes_the_connection() -> None:
    async def broken(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise OSError("gone")

    wire, _ = talk(GET, app=broken)
    assert wire.is_closed
    assert not wire.written.endswith(b"0\r\n\r\n")


def test_an_idle_connection_is_closed_after_a_while() -> None:
    async def work(connection: Connection, wire: Wire, app: Echo) -> None:
        connection.data_received(GET)
        await settled()
        assert wire.written
        await asyncio.sleep(0.05)
        assert wire.is_closed

    spoken(work, keep_alive_seconds=0.01)


@pytest.mark.parametrize("piece", [b"", b"GET / HT"])
def test_a_connection_that_asks_nothing_is_closed_too(piece: bytes) -> None:
    async def work(connection: Connection, wire: Wire, app: Echo) -> None:
        connection.data_received(piece)
        await asyncio.sleep(0.05)
        assert wire.is_closed

    spoken(work, keep_alive_seconds=0.01)


def test_an_answer_that_takes_its_time_keeps_its_connection() -> None:
    async def work(connection: Connection, wire: Wire, app: Echo) -> None:
        app.goes_on.clear()
        connection.data_received(GET)
        await asyncio.sleep(0.05)
        assert not wire.is_closed
        app.goes_on.set()

    spoken(work, keep_alive_seconds=0.01)


def test_the_end_of_the_server_waits_for_the_answer_that_is_on_its_way() -> None:
    async def work(connection: Connection, wire: Wire, app: Echo) -> None:
        app.goes_on.clear()
        connection.data_received(HEAD + b"hello")
        await settled()
        connection.shutdown()
        assert not wire.is_closed
        app.goes_on.set()
        await settled()
        assert wire.written.endswith(b"connection: close\r\n\r\nhello")
        assert wire.is_closed

    spoken(work)


def test_the_end_of_the_server_waits_for_no_idle_connection() -> None:
    async def work(connection: Connection, wire: Wire, app: Echo) -> None:
        connection.shutdown()
        assert wire.is_closed

    spoken(work)


@pytest.mark.parametrize("value", [b"a\r\nx: y", b"a\nb", b"a\0b"])
def test_no_value_becomes_a_line_of_its_own(value: bytes) -> None:
    with pytest.raises(AssertionError, match="several lines"):
        head_of(200, [(b"x", value)])


def test_an_answer_cannot_go_on_behind_its_end() -> None:
    async def twice(scope: Scope, receive: Receive, send: Send) -> None:
        messages: list[Message] = [
            {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]},
            {"type": "http.response.body", "body": b""},
        ]
        for message in messages:
            await send(message)
        with pytest.raises(AssertionError, match="behind its end"):
            await send(messages[1])

    talk(GET, app=twice)
