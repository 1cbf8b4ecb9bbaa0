"""`POST /v1/messages` and `POST /v1/messages/count_tokens`."""

import contextlib

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from flash41.chat.protocols import Protocol
from flash41.engine.prompt_images import num_widened
from flash41.server.answering import answer, beside_the_loop
from flash41.server.bodies import checked, read_body
from flash41.server.context import Context
from flash41.server.routes.documents import described
from flash41.server.schemas import CountBody, MessagesBody


def message_routes(context: Context) -> APIRouter:
    """The routes of Messages."""
    router = APIRouter()

    @router.post("/v1/messages", summary="Answer a conversation.", openapi_extra=described(MessagesBody))
    async def create(request: Request) -> Response:
        return await answer(context, request, Protocol.MESSAGES, MessagesBody)

    @router.post("/v1/messages/count_tokens", summary="Count a prompt.", openapi_extra=described(CountBody))
    async def count(request: Request) -> Response:
        body = await read_body(request, context.settings)
        checked(CountBody, body)
        _, prompt = await beside_the_loop(body, context.reader.render, Protocol.MESSAGES, body.fields)
        with contextlib.ExitStack() as inside:
            pictures = await context.pictures.read(prompt, inside)
            return JSONResponse({"input_tokens": num_widened(prompt.ids, pictures)})

    return router
