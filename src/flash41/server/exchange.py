"""One request on a connection and its response, as ASGI sees them: `receive` and `send`.

    head known ──► run ──receive──► body pieces ... http.disconnect
                     └──send──────► status line and headers, then the body as it comes

A body whose length is told goes out with its head in one write; any other begins at once, in chunks.  HTTP/1.0 knows no
chunks: there a body ends with the connection.  What is sent after the client went away is dropped.

source: RFC 9112 sections 6 and 7.
"""

import asyncio
import http
import logging
from collections.abc import Iterable
from typing import Protocol

from starlette.types import ASGIApp, Message, Scope

logger = logging.getLogger(__name__)

Header = tuple[bytes, bytes]

UNSENT_STATUSES = (204, 304)
"""Responses without a body."""
LARGEST_BACKLOG_BYTES = 65_536
"""Of a body that arrives faster than it is read; above, the connection is not read."""


class Line(Protocol):
    """The connection, as an exchange uses it."""

    default_headers: list[Header]
    """Headers of every response."""
    transport: asyncio.Transport
    """Takes bytes."""

    drained: asyncio.Future[None] | None
    """Is done when the client has read what was written too fast; None where it keeps up."""

    def pause(self) -> None:
        """Reads no more for now."""
        ...

    def go_on(self) -> None:
        """Reads on, unless something else waits."""
        ...

    def answered(self, *, keeps: bool) -> None:
        """The response is complete; whether the connection may serve another."""
        ...


class Exchange:
    """A request and its response."""

    def __init__(self, line: Line, scope: Scope, *, keeps: bool, expects_go_on: bool) -> None:
        self._line = line
        self._scope = scope
        self._keeps = keeps
        self._expects_go_on = expects_go_on
        self._body = bytearray()
        self._is_whole = False
        self._news = asyncio.Event()
        self._head: bytes | None = None
        self._is_chunked = False
        self.is_gone = False
        """Whether the client closed its connection."""
        self.has_begun = False
        """Whether the response has."""
        self.is_answered = False
        """Whether the response is complete."""

    def take(self, piece: bytes) -> None:
        """A piece of the request's body."""
        if self.is_answered:
            return  # nobody asks for the rest
        self._body += piece
        if len(self._body) > LARGEST_BACKLOG_BYTES:
            self._line.pause()
        self._news.set()

    def end(self) -> None:
        """The request is complete."""
        self._is_whole = True
        self._news.set()

    def leave(self) -> None:
        """The client is gone."""
        self.is_gone = not self.is_answered
        self._news.set()

    def part(self) -> None:
        """Makes this the last exchange of its connection."""
        self._keeps = False

    async def run(self, app: ASGIApp) -> None:
        """Lets the application answer; an answer that it leaves incomplete ends with the connection."""
        try:
            await app(self._scope, self.receive, self.send)
        except Exception:
            logger.exception("the application failed")
        finally:
            if not self.is_answered and not self.is_gone:
                self._line.transport.close()

    async def receive(self) -> Message:
        """The next piece of the body, or that the client, or the exchange, is gone."""
        if self._expects_go_on:
            self._expects_go_on = False
            self._line.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if not (self.is_gone or self.is_answered):
            self._line.go_on()
            await self._news.wait()
            self._news.clear()
        if self.is_gone or self.is_answered:
            return {"type": "http.disconnect"}
        piece, self._body = bytes(self._body), bytearray()
        return {"type": "http.request", "body": piece, "more_body": not self._is_whole}

    async def send(self, message: Message) -> None:
        """The beginning of the response, or a piece of its body."""
        if self._line.drained is not None:
            await asyncio.shield(self._line.drained)
        if self.is_gone:
            return
        if not self.has_begun:
            self._begin(message)
            return
        assert message["type"] == "http.response.body", f"{message['type']} in a response that has begun"
        assert not self.is_answered, "a body behind its end"
        self._write(message.get("body", b""), is_last=not message.get("more_body", False))

    def _begin(self, message: Message) -> None:
        assert message["type"] == "http.response.start", f"{message['type']} before a response has begun"
        self.has_begun, self._expects_go_on = True, False
        status, headers = message["status"], [*self._line.default_headers, *message.get("headers", ())]
        given = {name.lower(): value for name, value in headers}
        has_length = b"content-length" in given or status in UNSENT_STATUSES
        self._is_chunked = not has_length and self._scope["http_version"] != "1.0"
        self._keeps &= (has_length or self._is_chunked) and given.get(b"connection", b"").lower() != b"close"
        if self._is_chunked:
            headers.append((b"transfer-encoding", b"chunked"))
        if not self._keeps and b"connection" not in given:
            headers.append((b"connection", b"close"))
        head = head_of(status, headers)
        if has_length:
            self._head = head  # leaves with the body
        else:
            self._line.transport.write(head)

    def _write(self, body: bytes, *, is_last: bool) -> None:
        head, self._head = self._head or b"", None
        if self._scope["method"] == "HEAD":
            body = b""
        elif self._is_chunked:
            body = (b"%x\r\n%b\r\n" % (len(body), body) if body else b"") + (b"0\r\n\r\n" if is_last else b"")
        if head or body:
            self._line.transport.write(head + body)
        if is_last:
            self.is_answered = True
            self._news.set()
            self._line.answered(keeps=self._keeps)


def head_of(status: int, headers: Iterable[Header]) -> bytes:
    """Status line and headers; no value can begin a line of its own."""
    lines = [b"%b: %b" % (name.lower(), value) for name, value in headers]
    assert not any(sign in line for line in lines for sign in (b"\r", b"\n", b"\0")), "a header of several lines"
    phrase = http.HTTPStatus(status).phrase.encode()
    return b"\r\n".join([b"HTTP/1.1 %d %b" % (status, phrase), *lines, b"\r\n"])
