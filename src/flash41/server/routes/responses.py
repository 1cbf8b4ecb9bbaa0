"""`POST /v1/responses`."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from flash41.chat.protocols import Protocol
from flash41.server.answering import answer
from flash41.server.context import Context
from flash41.server.routes.documents import described
from flash41.server.schemas import ResponsesBody


def response_routes(context: Context) -> APIRouter:
    """The route of Responses."""
    router = APIRouter()

    @router.post("/v1/responses", summary="Answer a conversation, stateless.", openapi_extra=described(ResponsesBody))
    async def handle(request: Request) -> Response:
        return await answer(context, request, Protocol.RESPONSES, ResponsesBody)

    return router
