"""Bodies of requests: read under a limit, parsed strictly, checked against a schema.

Refused: more bytes than allowed (while they arrive), a body that trickles, what is not JSON or not UTF-8, NaN and
infinities, nesting beyond 200 levels, and whatever the schema does not hold.
"""

import asyncio
from dataclasses import dataclass
from typing import Any, TypeVar

import pydantic
import pydantic_core
from starlette.requests import ClientDisconnect, Request

from flash41.server.api_errors import ApiError
from flash41.server.settings import ServerSettings

MOST_FAULTS = 8
"""Faults of one body that are told."""

Schema = TypeVar("Schema", bound=pydantic.BaseModel)


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonBody:
    """A body that was read."""

    fields: dict[str, Any]
    num_bytes: int


async def read_body(request: Request, settings: ServerSettings) -> JsonBody:
    """The JSON object of a request; raises ApiError."""
    _check_kind(request)
    try:
        async with asyncio.timeout(settings.body_timeout_seconds):
            raw = await _read(request, settings.max_body_bytes)
    except TimeoutError:
        raise ApiError(408, f"the body took longer than {settings.body_timeout_seconds:g} s to arrive") from None
    except ClientDisconnect:
        raise ApiError(400, "the body broke off") from None
    try:
        found = pydantic_core.from_json(raw, allow_inf_nan=False)
    except ValueError as error:
        raise ApiError(400, f"the body is not valid JSON: {error}") from None
    if not isinstance(found, dict):
        raise ApiError(400, "the body must be a JSON object")
    return JsonBody(fields=found, num_bytes=len(raw))


def checked(schema: type[Schema], body: JsonBody) -> Schema:
    """The body as a record; raises ApiError naming every field at fault, and no value."""
    try:
        return schema.model_validate(body.fields)
    except pydantic.ValidationError as error:
        faults = error.errors(include_input=False, include_url=False, include_context=False)
    told = [f"{'.'.join(map(str, fault['loc'])) or 'body'}: {fault['msg']}" for fault in faults[:MOST_FAULTS]]
    more = f"; and {len(faults) - MOST_FAULTS} more" if len(faults) > MOST_FAULTS else ""
    param = str(faults[0]["loc"][0]) if faults[0]["loc"] else None
    raise ApiError(400, "; ".join(told) + more, param=param)


def _check_kind(request: Request) -> None:
    """Only JSON by name: a form of a foreign page cannot say so without asking the browser first."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise ApiError(415, "the content type must be application/json")


async def _read(request: Request, limit: int) -> bytes:
    announced = request.headers.get("content-length", "")
    if announced.isdigit() and int(announced[:20]) > limit:
        raise _too_large(limit)
    parts, length = [], 0
    async for part in request.stream():
        length += len(part)
        if length > limit:
            raise _too_large(limit)
        parts.append(part)
    return b"".join(parts)


def _too_large(limit: int) -> ApiError:
    return ApiError(413, f"the body is larger than {limit} bytes", code="request_too_large")
