"""What the interface description says of bodies that the routes read themselves."""

import copy
import functools
from typing import Any

from pydantic import BaseModel

ERROR = {
    "type": "object",
    "properties": {
        "error": {
            "type": "object",
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}
REFUSALS = {
    400: "The request is invalid.",
    401: "An API key is wanted.",
    404: "The model is not served.",
    413: "The body is too large.",
    415: "The content type is not application/json.",
    429: "Too many answers are open.",
    500: "The engine failed.",
    503: "The server is shutting down.",
    504: "The answer took too long.",
}


def described(schema: type[BaseModel]) -> dict[str, Any]:
    """The request body of a route, and its refusals."""
    content = {"application/json": {"schema": copy.deepcopy(_json_schema(schema))}}
    refusals = {
        str(status): {"description": text, "content": {"application/json": {"schema": ERROR}}}
        for status, text in REFUSALS.items()
    }
    return {"requestBody": {"required": True, "content": content}, "responses": refusals}


@functools.cache
def _json_schema(schema: type[BaseModel]) -> dict[str, Any]:
    """Made once per model: making it takes most of the time in which an application is made."""
    return schema.model_json_schema(ref_template="#/components/schemas/{model}")
