"""One connection: bytes in, requests out, one response after the other.

    data_received ──► httptools (llhttp) ──► Exchange, run as a task ──► next Exchange

The server of uvicorn starts and ends connections.  The parser itself knows no bounds, so they are here:

- bytes that bring nothing (of a head, of trailers, of the sizes of chunks) are counted until something has come of
  them: a whole head, a piece of a body, the end of a request;
- requests sent ahead of their answers wait in a line, which is short;
- what is no HTTP gets 400 and the end, or only the end where a response has begun.

Where a head asks for another protocol, the parser takes the body for that protocol.  None is spoken, so the head is
read again without the question.  Trailers are dropped: headers were checked before they came.

source: RFC 9112 sections 2, 3 and 9.
"""

import asyncio
from collections import deque
from typing import Any, cast
from urllib.parse import unquote

import httptools
import uvicorn
from starlette.types import Scope
from uvicorn.server import ServerState

from flash41.server.exchange import Exchange, Header, head_of
from flash41.server.security import LARGEST_HEAD_BYTES

MOST_WAITING = 16
"""Requests that may be sent ahead of their answers; a client that sends more is cut off."""


class _NoTunnelError(Exception):
    """CONNECT, which asks for a proxy."""


class _CrowdedError(Exception):
    """Too many requests ahead of their answers."""


class Connection(asyncio.Protocol):
    """One connection of a server; uvicorn's contract of an HTTP protocol."""

    transport: asyncio.Transport

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],  # noqa: ARG002 -- uvicorn's signature; nothing is kept there
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self._app = config.loaded_app
        self._keep_alive_seconds = config.timeout_keep_alive
        self._server = server_state
        self._loop = _loop or asyncio.get_running_loop()
        self._parser = httptools.HttpRequestParser(self)
        self._plain_head = b""
        self._target = b""
        self._headers: list[Header] = []
        self._is_in_head = True
        self._num_idle_bytes = 0
        self._is_fruitful = False
        self._reading: Exchange | None = None
        self._current: Exchange | None = None
        self._waiting: deque[Exchange] = deque()
        self.drained: asyncio.Future[None] | None = None
        self._idle: asyncio.TimerHandle | None = None
        self.default_headers = server_state.default_headers

    # ---- asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has come."""
        self.transport = cast(asyncio.Transport, transport)  # event loops have transports of their own
        # The server's set is typed by uvicorn's own protocols; it calls `shutdown` only.
        self._server.connections.add(self)  # type: ignore[arg-type]
        self._await_request()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 -- asyncio's signature
        """The client is gone."""
        self._server.connections.discard(self)
        self._stay()
        self._waiting.clear()
        if self._current is not None:
            self._current.leave()
        self.resume_writing()

    def data_received(self, data: bytes) -> None:
        """Bytes of requests."""
        self._stay()
        self._is_fruitful = False
        size = len(data)
        try:
            while data:
                data = self._fed(data)
        except httptools.HttpParserError as error:
            # What a callback raises is the cause, by its context.
            self._refuse(400, is_crowded=isinstance(error.__context__, _CrowdedError))
            return
        self._num_idle_bytes = 0 if self._is_fruitful else self._num_idle_bytes + size
        if self._num_idle_bytes > LARGEST_HEAD_BYTES:
            self._refuse(431 if self._is_in_head else 400)
        elif self._current is None:
            self._await_request()

    def pause_writing(self) -> None:
        """The client reads too slowly."""
        self.drained = self._loop.create_future()

    def resume_writing(self) -> None:
        """It has caught up, or is gone."""
        if self.drained is not None:
            self.drained.set_result(None)
            self.drained = None

    # ---- uvicorn

    def shutdown(self) -> None:
        """The server is about to end: at once where nothing is asked, else with the response."""
        if self._current is None:
            self.transport.close()
        else:
            self._current.part()

    # ---- the parser

    def on_message_begin(self) -> None:
        """A request begins."""
        if len(self._waiting) >= MOST_WAITING:
            raise _CrowdedError
        self._target, self._headers, self._is_in_head = b"", [], True

    def on_url(self, piece: bytes) -> None:
        """A piece of its target."""
        self._target += piece

    def on_header(self, name: bytes, value: bytes) -> None:
        """One of its headers, or of its trailers."""
        if self._is_in_head:
            self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """Its head is whole."""
        if self._parser.should_upgrade():
            self._plain_head = self._without_question()
            return
        self._is_in_head, self._is_fruitful = False, True
        scope = self._scope()
        expects = any(name == b"expect" and value.lower() == b"100-continue" for name, value in self._headers)
        keeps = scope["http_version"] != "1.0" and self._parser.should_keep_alive()
        self._reading = Exchange(self, scope, keeps=keeps, expects_go_on=expects)
        if self._current is None:
            self._start(self._reading)
        else:
            self._waiting.append(self._reading)
            self.pause()

    def on_body(self, piece: bytes) -> None:
        """A piece of its body."""
        assert self._reading is not None, "a body without a head"
        self._is_fruitful = True
        self._reading.take(piece)

    def on_message_complete(self) -> None:
        """It is whole."""
        if self._plain_head:
            return  # only the parser believes that
        assert self._reading is not None, "an end without a head"
        self._is_in_head, self._is_fruitful = True, True
        self._reading.end()

    # ---- exchanges

    def pause(self) -> None:
        """Reads no more for now."""
        self.transport.pause_reading()

    def go_on(self) -> None:
        """Reads on, unless requests wait for their turn."""
        if not self._waiting:
            self.transport.resume_reading()

    def answered(self, *, keeps: bool) -> None:
        """The current response is complete."""
        self._server.total_requests += 1
        self._current = None
        if not keeps:
            self.transport.close()
        elif self._waiting:
            self._start(self._waiting.popleft())
        else:
            self._await_request()
        self.go_on()

    def _start(self, exchange: Exchange) -> None:
        self._current = exchange
        task = self._loop.create_task(exchange.run(self._app))
        self._server.tasks.add(task)
        task.add_done_callback(self._server.tasks.discard)

    def _fed(self, data: bytes) -> bytes:
        """What is left to be read."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            head, self._plain_head = self._plain_head, b""
            self._parser = httptools.HttpRequestParser(self)
            return head + data[upgrade.args[0] :]
        return b""

    def _without_question(self) -> bytes:
        """The head that was read, without its wish for another protocol."""
        method, version = self._parser.get_method(), self._parser.get_http_version().encode()
        if method == b"CONNECT":
            raise _NoTunnelError
        lines = [b"%b: %b" % header for header in self._headers if header[0] != b"upgrade"]
        return b"\r\n".join([b"%b %b HTTP/%b" % (method, self._target, version), *lines, b"\r\n"])

    def _scope(self) -> Scope:
        path, _, query = self._target.partition(b"?")
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": self._parser.get_http_version(),
            "method": self._parser.get_method().decode("ascii"),
            "scheme": "http",
            "path": unquote(path.decode("ascii")),
            "raw_path": path,
            "query_string": query,
            "root_path": "",
            "headers": self._headers,
            "client": self.transport.get_extra_info("peername")[:2],
            "server": self.transport.get_extra_info("sockname")[:2],
            "state": {},
        }

    def _refuse(self, status: int, *, is_crowded: bool = False) -> None:
        """Ends the connection, with a status where no response has begun."""
        if is_crowded or (self._current is not None and self._current.has_begun):
            self.transport.abort()
            return
        words = b"invalid HTTP request" if status == 400 else b"request line and headers are too large"
        headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", b"%d" % len(words))]
        self.transport.write(head_of(status, [*self.default_headers, *headers, (b"connection", b"close")]) + words)
        self.transport.close()

    def _await_request(self) -> None:
        """Closes the connection if nothing more of a request comes."""
        self._stay()
        self._idle = self._loop.call_later(self._keep_alive_seconds, self.transport.close)

    def _stay(self) -> None:
        """No longer closes the connection for want of requests."""
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
