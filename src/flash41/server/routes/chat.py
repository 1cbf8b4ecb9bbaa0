"""`POST /v1/chat/completions`."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from flash41.chat.protocols import Protocol
from flash41.server.answering import answer
from flash41.server.context import Context
from flash41.server.routes.documents import described
from flash41.server.schemas import ChatBody


def chat_routes(context: Context) -> APIRouter:
    """The route of Chat Completions."""
    router = APIRouter()

    @router.post("/v1/chat/completions", summary="Answer a conversation.", openapi_extra=described(ChatBody))
    async def handle(request: Request) -> Response:
        return await answer(context, request, Protocol.CHAT, ChatBody)

    return router
