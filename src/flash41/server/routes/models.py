"""`GET /v1/models` and `GET /v1/models/{name}`."""

from typing import Any

from fastapi import APIRouter
from starlette.responses import JSONResponse, Response

from flash41.server.api_errors import ApiError
from flash41.server.context import Context


def model_routes(context: Context) -> APIRouter:
    """The routes that say what is served."""
    router = APIRouter()

    def entry(name: str) -> dict[str, Any]:
        facts = context.service.facts
        return {
            "id": name,
            "object": "model",
            "type": "model",
            "display_name": name,
            "created": context.started,
            "owned_by": "flash41",
            "max_model_len": facts.max_model_len,
        }

    @router.get("/v1/models", summary="List the names of the model.")
    async def names() -> Response:
        entries = [entry(name) for name in context.service.facts.names]
        return JSONResponse({"object": "list", "data": entries, "has_more": False})

    @router.get("/v1/models/{name:path}", summary="Describe the model.")
    async def one(name: str) -> Response:
        if name not in context.service.facts.names:
            raise ApiError(404, "this model is not served here", code="model_not_found")
        return JSONResponse(entry(name))

    return router
