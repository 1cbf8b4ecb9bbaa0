"""`POST /v1/completions`."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from flash41.server.answering import answer_texts
from flash41.server.context import Context
from flash41.server.routes.documents import described
from flash41.server.schemas import CompletionBody


def completion_routes(context: Context) -> APIRouter:
    """The route of raw completions."""
    router = APIRouter()

    @router.post("/v1/completions", summary="Continue texts.", openapi_extra=described(CompletionBody))
    async def handle(request: Request) -> Response:
        return await answer_texts(context, request)

    return router
