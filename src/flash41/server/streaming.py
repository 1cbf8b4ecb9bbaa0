"""Server-sent events, and work that stops when its client goes away.

data: {...}            one event; named events have a line `event: NAME` above
: keep-alive           a comment, when nothing else was sent for a while
data: [DONE]           the end, in the OpenAI protocols that have one
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from flash41.chat.protocols import WireEvent

COMMENT = b": keep-alive\n\n"
DONE = b"data: [DONE]\n\n"
HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}
"""No proxy may store or collect a stream."""


class ClientGoneError(Exception):
    """The client closed its connection."""


def encoded(events: Iterable[WireEvent]) -> bytes:
    """Events as bytes of a stream."""
    return "".join(
        f"data: {event.data}\n\n" if event.name is None else f"event: {event.name}\ndata: {event.data}\n\n"
        for event in events
    ).encode()


@contextlib.asynccontextmanager
async def while_connected(receive: Receive) -> AsyncIterator[None]:
    """Cancels what runs inside when the client goes away, and raises ClientGoneError in its place.

    The body of the request must have been read.
    """
    task, is_gone = asyncio.current_task(), False
    assert task is not None, "runs on an event loop"

    async def watch() -> None:
        nonlocal is_gone
        while (await receive())["type"] != "http.disconnect":
            pass
        is_gone = True
        task.cancel()

    watcher = asyncio.create_task(watch())
    try:
        yield
        if is_gone:
            await asyncio.sleep(0)  # takes the cancellation that has not arrived yet
    except asyncio.CancelledError:
        if is_gone and task.uncancel() == 0:
            raise ClientGoneError from None
        raise
    finally:
        watcher.cancel()


class EventStream(Response):
    """A response of events.  However it ends, its source is closed and `on_end` called, also if it never began."""

    media_type = "text/event-stream"

    def __init__(
        self,
        source: AsyncGenerator[bytes],
        *,
        keep_alive_seconds: float,
        stall_seconds: float,
        headers: dict[str, str],
        on_end: Callable[[], None],
    ) -> None:
        self._source = source
        self._on_end = on_end
        self._keep_alive_seconds = keep_alive_seconds
        self._stall_seconds = stall_seconds
        self.status_code = 200
        self.background = None
        self.init_headers({**HEADERS, **headers})
        del self.headers["content-length"]  # unknown until the end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 -- ASGI's signature
        """Sends all events; raises ClientGoneError when the client goes away."""
        try:
            async with contextlib.aclosing(self._source):
                await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
                async with while_connected(receive):
                    await self._send_all(send)
                # The end comes when nobody watches: an ended response reads like a client that went away.
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            self._on_end()

    async def _send_all(self, send: Send) -> None:
        last, lock = time.monotonic(), asyncio.Lock()

        async def put(piece: bytes) -> None:
            nonlocal last
            async with lock:
                await self._put(send, piece)
            last = time.monotonic()

        async def keep_alive() -> None:
            while True:
                await asyncio.sleep(max(0.001, last + self._keep_alive_seconds - time.monotonic()))
                if time.monotonic() - last >= self._keep_alive_seconds:
                    await put(COMMENT)

        keeper = asyncio.create_task(keep_alive())
        try:
            async for piece in self._source:
                if piece:
                    await put(piece)
        finally:
            keeper.cancel()

    async def _put(self, send: Send, piece: bytes) -> None:
        try:
            async with asyncio.timeout(self._stall_seconds):
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        except TimeoutError:
            raise ClientGoneError from None
