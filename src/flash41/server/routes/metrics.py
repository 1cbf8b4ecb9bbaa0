"""`GET /metrics`."""

from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import Response

from flash41.server.context import Context


def metric_routes(context: Context) -> APIRouter:
    """The route of Prometheus."""
    router = APIRouter()

    @router.get("/metrics", summary="Figures in the text format of Prometheus.")
    async def metrics() -> Response:
        return Response(context.metrics.text(), headers={"content-type": CONTENT_TYPE_LATEST})

    return router
