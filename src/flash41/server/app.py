"""The application: routes, handlers of errors, and the door around them."""

import time
from collections.abc import Callable
from typing import Any

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from flash41.chat.constraints import AnswerConstraints
from flash41.server.api_errors import ApiError
from flash41.server.context import Context
from flash41.server.conversations import ConstraintFor, ConversationReader
from flash41.server.door import Door, error_body, error_headers
from flash41.server.limits import Gate
from flash41.server.metrics import Metrics
from flash41.server.pictures import PictureDesk
from flash41.server.routes.anatomy import anatomy_routes
from flash41.server.routes.chat import chat_routes
from flash41.server.routes.completions import completion_routes
from flash41.server.routes.health import health_routes
from flash41.server.routes.messages import message_routes
from flash41.server.routes.metrics import metric_routes
from flash41.server.routes.models import model_routes
from flash41.server.routes.page import page_routes
from flash41.server.routes.responses import response_routes
from flash41.server.routes.tokenize import tokenize_routes
from flash41.server.security import Guard
from flash41.server.service import Service
from flash41.server.settings import ServerSettings
from flash41.version import __version__

ROUTES = (
    chat_routes,
    completion_routes,
    response_routes,
    message_routes,
    model_routes,
    tokenize_routes,
    health_routes,
    metric_routes,
    anatomy_routes,
    page_routes,
)
DESCRIPTION = "DeepSeek-V4.1-Flash behind the protocols that clients already speak."


class Application:
    """An ASGI application and what its driver needs to steer it."""

    def __init__(self, door: ASGIApp, api: FastAPI, context: Context) -> None:
        self._door = door
        self.api = api
        self.context = context

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles one connection."""
        await self._door(scope, receive, send)


def create_app(
    service: Service, settings: ServerSettings | None = None, constraint_for: ConstraintFor | None = None
) -> Application:
    """The application that serves `service`; without `constraint_for`, grammars enforce schemas and required calls."""
    settings, facts = settings or ServerSettings(), service.facts
    if constraint_for is None:
        constraint_for = AnswerConstraints(service.codec, facts.vocab_size, facts.eos_token_id).constraint
    gate = Gate(facts.max_num_seqs, settings.max_waiting)
    context = Context(
        service=service,
        settings=settings,
        gate=gate,
        metrics=Metrics(service, gate),
        reader=ConversationReader(service, settings, constraint_for),
        pictures=PictureDesk(facts, settings),
        started=int(time.time()),
    )
    api = FastAPI(title="flash41", version=__version__, description=DESCRIPTION, docs_url=None, redoc_url=None)
    for routes in ROUTES:
        api.include_router(routes(context))
    for kind, handler in _HANDLERS.items():
        api.add_exception_handler(kind, handler)
    door: ASGIApp = Door(api, Guard(settings), context.metrics)
    if settings.allowed_origins:
        origins = list(settings.allowed_origins)
        # Outside the door: the question that a browser asks first carries no key.
        door = CORSMiddleware(door, allow_origins=origins, allow_methods=["GET", "POST"], allow_headers=["*"])
    return Application(door, api, context)


async def _told(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError), error
    body = error_body(error, request.url.path, request.state.request_id)
    return JSONResponse(body, error.status, error_headers(error))


async def _no_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException), error
    status = error.status_code if error.status_code in (404, 405) else 400
    words = {404: "there is nothing at this path", 405: "this path takes another method"}
    told = ApiError(status, words.get(status, "invalid request"), code="not_found" if status == 404 else None)
    body = error_body(told, request.url.path, request.state.request_id)
    return JSONResponse(body, status, dict(error.headers or {}))


_HANDLERS: dict[type[Exception], Callable[[Request, Exception], Any]] = {ApiError: _told, HTTPException: _no_route}
