"""From a request to its response, the same way for conversations and for raw texts.

    read the body -> check it -> a place in the queue -> render -> submit -> a stream, or one body

The place is given back, and what is not finished is aborted, when the response has ended, however it ended.
"""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Any, ParamSpec, Protocol, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from flash41.chat import protocols
from flash41.chat.protocols import WireEvent
from flash41.errors import Flash41Error
from flash41.server.api_errors import ApiError, failed
from flash41.server.bodies import JsonBody, checked, read_body
from flash41.server.completions import TextReplies, count_choices, read_call
from flash41.server.context import Context
from flash41.server.replies import Replies, Tally
from flash41.server.schemas import ChatBody, CompletionBody, SamplingBody
from flash41.server.service import GenerationTimeoutError
from flash41.server.streaming import DONE, EventStream, encoded, while_connected

PREFIXES = {
    protocols.Protocol.CHAT: "chatcmpl-",
    protocols.Protocol.RESPONSES: "resp_",
    protocols.Protocol.MESSAGES: "msg_",
}
TEXT_PREFIX = "cmpl-"
LARGE_BODY_BYTES = 32_768
"""Above this a body is rendered beside the event loop, which others wait for."""
COSTLY_FIELDS = {"tools", "response_format", "text"}
"""A schema may take a second to become a grammar."""
SEED_HEADER = "x-seed"
APPROXIMATE_HEADER = "x-approximate"

P = ParamSpec("P")
T = TypeVar("T")


class Source(Protocol):
    """Replies to one call, conversations or texts."""

    tally: Tally

    def close(self) -> None:
        """Gives up what is not finished."""
        ...

    def expire(self, failure: Flash41Error) -> None:
        """Gives up what is not finished, with a reason."""
        ...

    async def body(self) -> dict[str, Any]:
        """The whole reply."""
        ...

    def events(self) -> AsyncGenerator[list[WireEvent]]:
        """Events as they become certain."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Manner:
    """How one call is answered."""

    protocol: protocols.Protocol
    """Whose errors a stream ends with; raw texts have those of Chat Completions."""
    stream: bool
    shows_seed: bool
    """Whether the body of a reply has a field for the seed."""
    seed: int
    num_prompt_tokens: int


async def answer(
    context: Context, request: Request, protocol: protocols.Protocol, schema: type[SamplingBody]
) -> Response:
    """The response to a conversation; raises ApiError and ClientGoneError."""
    body = await read_body(request, context.settings)
    record = checked(schema, body)
    count = (record.n or 1) if isinstance(record, ChatBody) else 1
    with contextlib.ExitStack() as inside:
        inside.enter_context(context.gate.entered(count))
        salt = request.state.salt
        rendered = await beside_the_loop(body, context.reader.begin, protocol, body.fields, record)
        pictures = await context.pictures.read(rendered[1], inside)
        call = await beside_the_loop(body, context.reader.call, protocol, body.fields, rendered, pictures, record, salt)
        name = f"{PREFIXES[protocol]}{request.state.request_id}"
        manner = Manner(
            protocol=protocol,
            stream=call.stream,
            shows_seed=protocol is protocols.Protocol.CHAT,
            seed=call.seed,
            num_prompt_tokens=call.num_prompt_tokens,
        )
        return await _respond(context, request, Replies(context.service, call, name, _now()), manner, inside)


async def answer_texts(context: Context, request: Request) -> Response:
    """The response to raw texts; raises ApiError and ClientGoneError."""
    body = await read_body(request, context.settings)
    record = checked(CompletionBody, body)
    with contextlib.ExitStack() as inside:
        inside.enter_context(context.gate.entered(count_choices(record)))
        call = await beside_the_loop(body, read_call, record, context.service, context.settings, request.state.salt)
        name = f"{TEXT_PREFIX}{request.state.request_id}"
        manner = Manner(
            protocol=protocols.Protocol.CHAT,
            stream=call.stream,
            shows_seed=True,
            seed=call.jobs[0].seed,
            num_prompt_tokens=call.num_prompt_tokens,
        )
        return await _respond(context, request, TextReplies(context.service, call, name, _now()), manner, inside)


async def beside_the_loop(body: JsonBody, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """The result of work on a body; where it may take long it runs in a thread, so that others need not wait."""
    if body.num_bytes <= LARGE_BODY_BYTES and not COSTLY_FIELDS & body.fields.keys():
        return work(*args, **kwargs)
    return await asyncio.to_thread(work, *args, **kwargs)


async def _respond(
    context: Context, request: Request, source: Source, manner: Manner, inside: contextlib.ExitStack
) -> Response:
    inside.callback(_note, request, manner, source.tally)
    inside.callback(source.close)
    seconds = context.settings.request_timeout_seconds
    failure = GenerationTimeoutError(f"the answer took longer than {seconds:g} s")
    # One timer for the whole answer; one per token would cost more than the tokens do.
    inside.callback(asyncio.get_running_loop().call_later(seconds, source.expire, failure).cancel)
    headers, settings = {SEED_HEADER: str(manner.seed)}, context.settings
    if context.service.facts.approximate:
        headers[APPROXIMATE_HEADER] = ", ".join(context.service.facts.approximate)
    if manner.stream:
        return EventStream(
            _stream(context, source, manner, request.state.request_id),
            keep_alive_seconds=settings.keep_alive_seconds,
            stall_seconds=settings.stall_seconds,
            headers=headers,
            on_end=inside.pop_all().close,
        )
    async with while_connected(request.receive):
        found = await _whole(source)
    if manner.shows_seed:
        found["seed"] = manner.seed
    return Response(json.dumps(found, ensure_ascii=False), media_type="application/json", headers=headers)


def _now() -> int:
    return int(time.time())


def _note(request: Request, manner: Manner, tally: Tally) -> None:
    """Adds the counts of an answer to the line of log."""
    request.state.facts.update(
        prompt_tokens=manner.num_prompt_tokens,
        cached_tokens=tally.num_cached_tokens,
        output_tokens=tally.num_generated_tokens,
        seed=manner.seed,
    )


async def _whole(source: Source) -> dict[str, Any]:
    try:
        return await source.body()
    except Flash41Error as error:
        raise failed(error) from error


async def _stream(context: Context, source: Source, manner: Manner, request_id: str) -> AsyncGenerator[bytes]:
    """Bytes of a stream; what goes wrong becomes its last event."""
    started, count, fault = time.monotonic(), 0, None
    try:
        async with contextlib.aclosing(source.events()) as found:
            async for events in found:
                if count == 0 and events:
                    context.metrics.first_token.observe(time.monotonic() - started)
                count += len(events)
                yield encoded(events)
    except Flash41Error as error:
        fault = failed(error)
    if fault is not None:
        yield encoded([_error_event(manner.protocol, fault, request_id, count)])
    if manner.protocol is protocols.Protocol.CHAT:
        yield DONE


def _error_event(protocol: protocols.Protocol, error: ApiError, request_id: str, number: int) -> WireEvent:
    """The last event of a stream that broke off."""
    if protocol is protocols.Protocol.MESSAGES:
        return WireEvent(name="error", data=json.dumps(error.anthropic(request_id)))
    if protocol is protocols.Protocol.RESPONSES:
        told = {"type": "error", "code": error.code, "message": error.message, "param": error.param}
        return WireEvent(name="error", data=json.dumps({**told, "sequence_number": number}))
    return WireEvent(name=None, data=json.dumps(error.openai()))
