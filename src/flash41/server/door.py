"""The outermost layer: every request passes here on its way in and on its way out.

In: a request id, the checks of `security`.  Out: headers, one line of log, figures.  Whatever nobody handled ends here
as an error without details.
"""

import json
import logging
import re
import secrets
import time
from typing import Any

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from flash41.server.api_errors import ApiError
from flash41.server.logs import ACCESS, FIELDS
from flash41.server.metrics import Metrics
from flash41.server.security import PAGE_HEADERS, Guard, check_head
from flash41.server.streaming import BODY_SENDER, ClientGoneError

logger = logging.getLogger(__name__)

MESSAGES_PATH = "/v1/messages"
GONE = 499
"""What is counted for a client that went away."""

_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


class Door:
    """Wraps the application."""

    def __init__(self, app: ASGIApp, guard: Guard, metrics: Metrics) -> None:
        self._app = app
        self._guard = guard
        self._metrics = metrics
        self._log = logging.getLogger(ACCESS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles one connection; only HTTP is spoken."""
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1000})
            return
        visit = _Visit(scope, send)
        try:
            await self._enter(visit, scope, receive)
        except ApiError as error:
            await visit.refuse(error)
        except ClientGoneError:
            visit.status = GONE
            self._metrics.disconnects.inc()
        except Exception as error:  # the outermost loop: nothing may end the server
            logger.error("a request failed: %s", type(error).__name__, exc_info=True, extra={FIELDS: visit.names()})
            await visit.refuse(ApiError(500, "internal error", code="internal_error"))
        self._leave(visit, scope)

    async def _enter(self, visit: "_Visit", scope: Scope, receive: Receive) -> None:
        headers = Headers(scope=scope)
        check_head(scope)
        self._guard.check_host(headers.get("host"))
        salt = self._guard.salt(scope["path"], headers)
        scope["state"] = {
            "request_id": visit.request_id,
            "salt": salt,
            "facts": visit.facts,
            BODY_SENDER: visit.pass_on,
        }
        await self._app(scope, receive, visit.send)

    def _leave(self, visit: "_Visit", scope: Scope) -> None:
        seconds = time.monotonic() - visit.started
        route = getattr(scope.get("route"), "path", "other")
        self._metrics.requests.labels(route, str(visit.status)).inc()
        self._metrics.duration.labels(route).observe(seconds)
        fields = {**visit.names(), "status": visit.status, "seconds": round(seconds, 4), **visit.facts}
        self._log.info("request", extra={FIELDS: fields})


class _Visit:
    """One request on its way."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self._scope = scope
        self.pass_on = send
        given = Headers(scope=scope).get("x-request-id", "")
        self.request_id = given if _ID.fullmatch(given) else secrets.token_hex(12)
        self.started = time.monotonic()
        self.status = 0
        self.facts: dict[str, Any] = {}
        """What the route adds to the line of log: counts, never text."""

    def names(self) -> dict[str, Any]:
        path = self._scope.get("raw_path") or self._scope["path"].encode()  # escaped: no line breaks
        shown = path[:256].decode("ascii", "backslashreplace")
        return {"request_id": self.request_id, "method": self._scope["method"], "path": shown}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            ours = {**PAGE_HEADERS, "x-request-id": self.request_id}
            present = {name.lower() for name, _ in message.get("headers", ())}
            added = [(name.encode(), value.encode()) for name, value in ours.items() if name.encode() not in present]
            message = {**message, "headers": [*message.get("headers", ()), *added]}
        await self.pass_on(message)

    async def refuse(self, error: ApiError) -> None:
        if self.status:
            return  # the response has begun: the connection is closed without its end
        body = json.dumps(error_body(error, self._scope["path"], self.request_id)).encode()
        headers = [(name.encode(), value.encode()) for name, value in error_headers(error).items()]
        headers += [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await self.send({"type": "http.response.start", "status": error.status, "headers": headers})
        await self.send({"type": "http.response.body", "body": body, "more_body": False})


def error_body(error: ApiError, path: str, request_id: str) -> dict[str, Any]:
    """An error in the shape of the protocol of a path."""
    return error.anthropic(request_id) if path.startswith(MESSAGES_PATH) else error.openai()


def error_headers(error: ApiError) -> dict[str, str]:
    """Headers that go with an error."""
    headers = {}
    if error.retry_after_seconds is not None:
        headers["retry-after"] = str(error.retry_after_seconds)
    if error.status == 401:
        headers["www-authenticate"] = "Bearer"
    if error.status in (408, 413):
        headers["connection"] = "close"  # the rest of the body is not waited for
    return headers
