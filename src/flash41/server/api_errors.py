"""What a client is told when something goes wrong, in the shape its protocol gives to errors.

    Chat Completions, Responses, ...   {"error": {"message", "type", "param": null, "code"}}
    Messages                           {"type": "error", "error": {"type", "message"}, "request_id"}

A message never holds text of a prompt or a key: quoted texts in the codec's complaints are replaced.

spec: chat.md section 10.
"""

import json
import re
from typing import Any

import deepseek_recipe as recipe

from flash41.errors import Flash41Error, RequestError
from flash41.server.service import EngineStoppedError, GenerationTimeoutError

LONGEST_MESSAGE = 600
"""Characters of an error's message."""
RESTART_SECONDS = 30
"""When a server that stops may be back."""

_GIVEN = (
    (re.compile(r'(?:string )?"(?:[^"\\]|\\.)*"', re.DOTALL), "a text"),
    (re.compile(r"unknown (variant|field) `.*`, expected", re.DOTALL), r"unknown \1, expected"),
    (re.compile(r"got ['\"\[{(].*, expected", re.DOTALL), "got something else, expected"),
)
"""How complaints show what was given, and what is told instead."""
_KINDS = {
    400: ("invalid_request_error", "invalid_request_error"),
    401: ("authentication_error", "authentication_error"),
    403: ("permission_error", "permission_error"),
    404: ("not_found_error", "not_found_error"),
    405: ("invalid_request_error", "invalid_request_error"),
    408: ("timeout_error", "timeout_error"),
    413: ("invalid_request_error", "request_too_large"),
    415: ("invalid_request_error", "invalid_request_error"),
    429: ("rate_limit_error", "rate_limit_error"),
    431: ("invalid_request_error", "request_too_large"),
    500: ("server_error", "api_error"),
    503: ("overloaded_error", "overloaded_error"),
    504: ("timeout_error", "timeout_error"),
}
"""Status to the type in the OpenAI shape and in the Anthropic shape."""


class ApiError(Exception):
    """An answer that is an error."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        retry_after_seconds: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message[:LONGEST_MESSAGE]
        self.code = code or _KINDS[status][0]
        self.param = param
        self.retry_after_seconds = retry_after_seconds

    def openai(self) -> dict[str, Any]:
        """The error as OpenAI's protocols carry it."""
        kind = _KINDS[self.status][0]
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def anthropic(self, request_id: str) -> dict[str, Any]:
        """The error as Messages carries it."""
        error = {"type": _KINDS[self.status][1], "message": self.message}
        return {"type": "error", "error": error, "request_id": request_id}


def refused(error: RequestError) -> ApiError:
    """A request that the codec or the engine refuses."""
    cause = error.__cause__
    if isinstance(cause, recipe.ConversionError):
        return _from_codec(cause)
    return ApiError(400, without_quotes(str(error)))


def failed(error: Flash41Error) -> ApiError:
    """A request that broke off; a refusal by the engine is the client's to mend."""
    if isinstance(error, RequestError):
        return refused(error)
    if isinstance(error, EngineStoppedError):
        return ApiError(503, "the server is shutting down", retry_after_seconds=RESTART_SECONDS)
    if isinstance(error, GenerationTimeoutError):
        return ApiError(504, str(error), code="request_timeout")
    return ApiError(500, "the engine failed to compute this request", code="engine_error")


def without_quotes(message: str) -> str:
    """A message without the texts it quotes, which may be a client's."""
    for form, told in _GIVEN:
        message = form.sub(told, message)
    return message


def _from_codec(error: recipe.ConversionError) -> ApiError:
    """The hosted service's wording and status."""
    found = json.loads(error.body)
    detail = found.get("error", found)
    status = error.status_code if error.status_code in _KINDS else 400
    return ApiError(status, without_quotes(str(detail.get("message", "invalid request"))), param=detail.get("param"))
