"""`GET /v1/anatomy`: the served model as the anatomy tab draws it.

The document follows from the configuration alone; it is made when it is first asked for, beside the event loop.
"""

import threading

from fastapi import APIRouter
from starlette.responses import Response

from flash41.config.architecture import ModelConfig
from flash41.server.api_errors import ApiError
from flash41.server.context import Context
from flash41.tools.anatomy import dissect
from flash41.tools.anatomy_page.document import page_document
from flash41.tools.anatomy_page.html import embedded


def anatomy_routes(context: Context) -> APIRouter:
    """The route of the drawing's numbers; a matter of the page, no part of the interface description."""
    router = APIRouter(include_in_schema=False)
    made: dict[str, str] = {}
    turn = threading.Lock()

    def document(config: ModelConfig) -> str:
        name = context.service.facts.names[0]
        with turn:
            if name not in made:
                made[name] = embedded(page_document(dissect(config), name))
            return made[name]

    @router.get("/v1/anatomy")
    def anatomy() -> Response:  # not async: made in a thread
        config = context.settings.model_config
        if config is None:
            raise ApiError(404, "the configuration of this model is not known here", code="not_found")
        return Response(document(config), media_type="application/json", headers={"cache-control": "no-cache"})

    return router
