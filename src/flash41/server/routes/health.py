"""`GET /health`, `GET /ready`, and `GET /v1/stats`."""

import asyncio
from dataclasses import asdict

from fastapi import APIRouter
from starlette.responses import JSONResponse, Response

from flash41.server.context import Context

OWN = ("num_used_pages", "num_steps", "num_failed_steps", "num_finished", "num_generated_tokens", "step_seconds")


def health_routes(context: Context) -> APIRouter:
    """The routes that say how the server is."""
    router = APIRouter()

    @router.get("/health", summary="Whether the process lives.")
    async def health() -> Response:
        return JSONResponse({"status": "ok"})

    @router.get("/ready", summary="Whether a request would be computed.")
    async def ready() -> Response:
        reason = "stopping" if context.gate.is_closed else "ok" if context.service.is_ready else "engine failed"
        return JSONResponse({"status": reason}, 200 if reason == "ok" else 503)

    @router.get("/v1/stats", summary="Figures of the engine.")
    async def figures() -> Response:
        facts, stats = context.service.facts, context.service.stats()
        own = {field: getattr(stats, field) for field in OWN}
        return JSONResponse(
            {
                "model": {"names": facts.names, "max_model_len": facts.max_model_len},
                "max_num_seqs": facts.max_num_seqs,
                "choices": facts.choices,
                "approximate": facts.approximate,
                "open_answers": context.gate.num_open,
                "tasks": len(asyncio.all_tasks()),
                "engine": {**asdict(stats.engine), **own},
            }
        )

    return router
