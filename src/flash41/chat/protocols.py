"""Replies in the wire format of a protocol: ids of a completion in, the official codec's chunks out.

Three protocols carry a conversation: Chat Completions, Responses, and Messages.  The codec knows the shape of every
chunk of each; this file feeds it and hands its JSON on.  Order of the verbs:

    begin(prompt) -> push(id)* -> finish(reason)       each gives the events that became certain
    body()                                             the whole reply, where it was asked to be kept

A reply may end before `finish`: at a stop string, or behind the calls' end tag.  `is_finished` says so, and whoever
drives the engine aborts the request then.  EOS is not pushed.

spec: chat.md sections 8 and 10.
"""

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import deepseek_recipe as recipe

from flash41.chat.parsing import EngineFinish
from flash41.chat.tokenizer import Tokenizer


class Protocol(enum.Enum):
    """How a conversation travels."""

    CHAT = "chat"
    """Chat Completions."""
    RESPONSES = "responses"
    """Responses."""
    MESSAGES = "messages"
    """Messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WireEvent:
    """One event of a streamed reply."""

    name: str | None
    """Name of the event; Chat Completions names none."""
    data: str
    """A JSON object."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WireRequest:
    """What of a request returns in its replies, in Responses: the settings, and which namespace a tool is of."""

    request: recipe.ConversationRequest
    """The codec's record."""
    echo: recipe.ResponsesEcho | None = None
    namespaces: Mapping[str, tuple[str, str]] | None = None


Alternatives = Sequence[tuple[int, float]]


def converted(protocol: Protocol, body: dict[str, Any], options: recipe.ConversionOptions) -> WireRequest:
    """The codec's record of a body; raises what the codec raises."""
    if protocol is Protocol.CHAT:
        return WireRequest(request=recipe.ChatCompletionRequest(body).convert(options))
    if protocol is Protocol.MESSAGES:
        return WireRequest(request=recipe.MessagesRequest(body).convert(options))
    request = recipe.ResponsesRequest(body)
    echo, namespaces = request.echo(), request.namespace_tool_map(options)  # both are lost by the conversion
    return WireRequest(request=request.convert(options), echo=echo, namespaces=namespaces)


class WireReply:
    """One reply in the making."""

    def __init__(
        self,
        protocol: Protocol,
        wire: WireRequest,
        special_tokens: recipe.SpecialTokens,
        decoder: recipe.Tokenizer,
        tokenizer: Tokenizer,
        *,
        name: str,
        model: str,
        created: int,
        keeps: bool,
    ) -> None:
        options = wire.request.parsing_options
        options.special_tokens = special_tokens
        self._processor = recipe.StreamProcessor(_generator(protocol, wire, name, model), options, decoder)
        self._response: Any = _RESPONSES[protocol]
        self._kept: Any = None
        # The codec drops the bytes of a character that never became whole; they are shown as U+FFFD everywhere else.
        self._text = tokenizer.incremental()
        self._identity = (name, model, created) if keeps else None

    @property
    def is_finished(self) -> bool:
        """Whether nothing will follow."""
        return self._processor.finished

    def begin(self, num_prompt_tokens: int, num_cached_tokens: int) -> list[WireEvent]:
        """Events of the beginning."""
        if self._identity is not None:
            self._kept = self._response(*self._identity, num_prompt_tokens, num_cached_tokens)
        usage = recipe.PromptUsage(prompt_tokens=num_prompt_tokens, prompt_cache_hit_tokens=num_cached_tokens)
        return self._feed(recipe.InferenceChunk.ready(prompt_usage=usage))

    def push(self, token_id: int, logprob: float | None = None, top: Alternatives = ()) -> list[WireEvent]:
        """Events that became certain with this id; none after the end."""
        self._text.push(token_id)
        logprobs = None if logprob is None else [(logprob, list(top))]
        return self._feed(recipe.InferenceChunk.tokens([token_id], logprobs))

    def finish(self, reason: EngineFinish) -> list[WireEvent]:
        """What was held back, when the engine ended the request."""
        held = self._text.flush()
        events = self._feed(recipe.InferenceChunk.text(held, 0)) if held else []
        finish = recipe.InferenceFinishReason.Stop if reason == "stop" else recipe.InferenceFinishReason.Length
        return events + self._feed(recipe.InferenceChunk.finish(finish))

    def body(self) -> str:
        """The whole reply, a JSON object; only of one that keeps its chunks and has begun."""
        assert self._kept is not None, "this reply keeps no chunks, or never began"
        text: str = self._kept.to_json()
        return text

    def _feed(self, chunk: recipe.InferenceChunk) -> list[WireEvent]:
        if self._processor.finished:
            return []
        events = []
        for native in self._processor.push(chunk):
            if self._kept is None:
                events.append(WireEvent(name=self._response.sse_event_name(native), data=native.to_json()))
            else:
                self._kept.accumulate(native)
        return events


_RESPONSES = {
    Protocol.CHAT: recipe.ChatCompletionResponse,
    Protocol.RESPONSES: recipe.ResponsesResponse,
    Protocol.MESSAGES: recipe.MessagesResponse,
}

_Generator = recipe.ChatCompletionChunkGenerator | recipe.ResponsesChunkGenerator | recipe.MessagesChunkGenerator


def _generator(protocol: Protocol, wire: WireRequest, name: str, model: str) -> _Generator:
    if protocol is Protocol.CHAT:
        return recipe.ChatCompletionRequest.chunk_generator(wire.request, name, model)
    if protocol is Protocol.MESSAGES:
        return recipe.MessagesRequest.chunk_generator(wire.request, name, model)
    generator = recipe.ResponsesRequest.chunk_generator(wire.request, name, model)
    if wire.namespaces:
        generator = generator.with_namespace_tool_map(dict(wire.namespaces))
    return generator if wire.echo is None else generator.with_echo(wire.echo)
