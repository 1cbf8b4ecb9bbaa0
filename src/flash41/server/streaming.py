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
BODY_SENDER = "send_body"
"""In the state of a request: takes pieces of a body past the layers that look only at how a response begins.

Each layer would cost a call for every token of every stream.
"""


class ClientGoneError(Exception):
    """The client closed its connection."""


def encoded(events: Iterable[WireEvent]) -> bytes:
    """Events as bytes of a stream."""
    return "".join(
        f"data: {event.data}\n\n" if event.name is None else f"event: {event.name}\ndata: {event.data}\n\n"
        for event in events
    ).encode()


@contextlib.asynccontextmanager
async def while_connected(receive: Receive) -> AsyncIterator[Callable[[], None]]:
    """Cancels what runs inside when the client goes away, and raises ClientGoneError in its place.

    What is yielded says, when called, that the client has gone away.  The body of the request must have been read.
    """
    task, is_gone = asyncio.current_task(), False
    assert task is not None, "runs on an event loop"

    def leave() -> None:
        nonlocal is_gone
        if not is_gone:
            is_gone = True
            task.cancel()

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        leave()

    watcher = asyncio.create_task(watch())
    try:
        yield leave
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

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends all events; raises ClientGoneError when the client goes away."""
        try:
            async with contextlib.aclosing(self._source):
                await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
                send = scope.get("state", {}).get(BODY_SENDER, send)
                async with while_connected(receive) as leave:
                    # A task of its own: one that is woken has only these frames to go through, not those of all layers.
                    await asyncio.create_task(self._send_all(send, leave))
                # The end comes when nobody watches: an ended response reads like a client that went away.
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            self._on_end()

    async def _send_all(self, send: Send, leave: Callable[[], None]) -> None:
        last, is_sending = time.monotonic(), False

        async def put(piece: bytes) -> None:
            nonlocal last, is_sending
            last, is_sending = time.monotonic(), True
            await send({"type": "http.response.body", "body": piece, "more_body": True})
            last, is_sending = time.monotonic(), False

        async def watch() -> None:
            """One task for both clocks; a timer per piece would cost more than the pieces do."""
            while True:
                await asyncio.sleep(min(self._keep_alive_seconds, self._stall_seconds) / 4)
                silence = time.monotonic() - last
                if is_sending and silence >= self._stall_seconds:
                    leave()
                elif not is_sending and silence >= self._keep_alive_seconds:
                    comment = asyncio.create_task(put(COMMENT))
                    comments.add(comment)
                    comment.add_done_callback(comments.discard)

        comments = set[asyncio.Task[None]]()
        watcher = asyncio.create_task(watch())
        try:
            async for piece in self._source:
                if piece:
                    await put(piece)
        finally:
            for task in (watcher, *comments):
                task.cancel()
