"""`POST /v1/tokenize` and `POST /v1/detokenize`."""

import contextlib

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from flash41.chat.protocols import Protocol
from flash41.engine.prompt_images import widen
from flash41.errors import RequestError
from flash41.server.answering import beside_the_loop
from flash41.server.api_errors import ApiError, refused
from flash41.server.bodies import checked, read_body
from flash41.server.context import Context
from flash41.server.conversations import check_size
from flash41.server.routes.documents import described
from flash41.server.schemas import DetokenizeBody, TokenizeBody


def tokenize_routes(context: Context) -> APIRouter:
    """The routes between text and ids."""
    router = APIRouter()
    tokenizer = context.service.codec.tokenizer

    @router.post("/v1/tokenize", summary="Text or a conversation to ids.", openapi_extra=described(TokenizeBody))
    async def tokenize(request: Request) -> Response:
        body = await read_body(request, context.settings)
        record = checked(TokenizeBody, body)
        if (record.text is None) == (record.messages is None):
            raise ApiError(400, "give either text or messages")
        if record.text is not None:
            check_size(record.text, context.service)
            encode = tokenizer.encode_with_control if record.control else tokenizer.encode
            try:
                ids = list(await beside_the_loop(body, encode, record.text))
            except RequestError as error:
                raise refused(error) from error
        else:
            _, prompt = await beside_the_loop(body, context.reader.render, Protocol.CHAT, body.fields)
            with contextlib.ExitStack() as inside:
                pictures = await context.pictures.read(prompt, inside)
                image = context.service.facts.image_token_id
                ids = list(prompt.ids if image is None else widen(prompt.ids, pictures, image)[0])
        return JSONResponse({"tokens": ids, "count": len(ids), "max_model_len": context.service.facts.max_model_len})

    @router.post("/v1/detokenize", summary="Ids to text.", openapi_extra=described(DetokenizeBody))
    async def detokenize(request: Request) -> Response:
        body = await read_body(request, context.settings)
        record = checked(DetokenizeBody, body)
        try:
            text = await beside_the_loop(body, tokenizer.decode, record.tokens, record.skip_special)
        except RequestError as error:
            raise refused(error) from error
        return JSONResponse({"text": text})

    return router
