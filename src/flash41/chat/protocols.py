"""Replies in the wire format of a protocol: ids of a completion in, the official codec's chunks out.

Three protocols carry a conversation: Chat Completions, Responses, and Messages.  The codec knows the shape of every
chunk of each; this file feeds it and hands its JSON on.  Order of the verbs:

    begin(prompt) -> push(id)* -> finish(reason)       each gives the events that became certain
    body()                                             the whole reply, where it was asked to be kept

A reply may end before `finish`: at a stop string, or behind the calls' end tag.  `is_finished` says so, and whoever
drives the engine aborts the request then.  EOS is counted, not pushed.

spec: chat.md sections 8 and 10.
"""

import enum
import json
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What a reply calls itself."""

    name: str
    model: str
    created: int
    """Seconds since 1970."""


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
    """One reply in the making.

    Tokens are counted here: the codec counts text, which differs where the model writes broken characters.
    """

    def __init__(
        self,
        protocol: Protocol,
        wire: WireRequest,
        options: recipe.ParsingOptions,
        identity: Identity,
        counts: "Counts",
        decoder: recipe.Tokenizer,
        tokenizer: Tokenizer,
        *,
        keeps: bool,
    ) -> None:
        self._processor = recipe.StreamProcessor(_generator(protocol, wire, identity), options, decoder)
        self._response: Any = _RESPONSES[protocol]
        self._kept: Any = None
        self._identity = identity if keeps else None
        self._text = tokenizer.incremental()
        self._counts = counts

    @property
    def is_finished(self) -> bool:
        """Whether nothing will follow."""
        return self._processor.finished

    def begin(self, num_prompt_tokens: int, num_cached_tokens: int) -> list[WireEvent]:
        """Events of the beginning."""
        if self._identity is not None:
            name, model, created = self._identity.name, self._identity.model, self._identity.created
            self._kept = self._response(name, model, created, num_prompt_tokens, num_cached_tokens)
        usage = recipe.PromptUsage(prompt_tokens=num_prompt_tokens, prompt_cache_hit_tokens=num_cached_tokens)
        return self._feed(recipe.InferenceChunk.ready(prompt_usage=usage))

    def push(self, token_id: int, logprob: float | None = None, top: Alternatives = ()) -> list[WireEvent]:
        """Events that became certain with this id; none after the end."""
        text = self._text.push(token_id)
        self._counts.take(token_id)
        if logprob is not None:
            # Only ids can carry log-probabilities.  The codec decodes them itself, and loses broken characters.
            return self._feed(recipe.InferenceChunk.tokens([token_id], [(logprob, list(top))]))
        return self._feed(recipe.InferenceChunk.text(text, 1)) if text else []

    def count(self) -> None:
        """Counts a token that is no text: the one that ends the answer."""
        self._counts.take(None)

    def tell_drafts(self, details: Mapping[str, Any]) -> None:
        """What has come of drafts so far (`draft_details`); the usage of Chat Completions has a place for it."""
        self._counts.drafts = details

    def finish(self, reason: EngineFinish) -> list[WireEvent]:
        """What was held back, when the engine ended the request."""
        held = self._text.flush()
        events = self._feed(recipe.InferenceChunk.text(held, 0)) if held else []
        finish = recipe.InferenceFinishReason.Stop if reason == "stop" else recipe.InferenceFinishReason.Length
        return events + self._feed(recipe.InferenceChunk.finish(finish))

    def body(self) -> dict[str, Any]:
        """The whole reply; only of one that keeps its chunks and has begun."""
        assert self._kept is not None, "this reply keeps no chunks, or never began"
        return self._counts.put_into(json.loads(self._kept.to_json()))

    def _feed(self, chunk: recipe.InferenceChunk) -> list[WireEvent]:
        if self._processor.finished:
            return []
        chunks = self._processor.push(chunk)
        if self._kept is None:
            return [self._event(native, is_last=self.is_finished) for native in chunks]
        for native in chunks:
            self._kept.accumulate(native)
        return []

    def _event(self, native: Any, *, is_last: bool) -> WireEvent:
        name, data = self._response.sse_event_name(native), native.to_json()
        if is_last and USAGE in data:
            data = compact(self._counts.put_into(json.loads(data)))
        return WireEvent(name=name, data=data)


USAGE = '"usage":{'


class Counts:
    """Tokens of one answer, and where each protocol writes them."""

    def __init__(self, protocol: Protocol, end_of_reasoning: int | None, *, reasons: bool) -> None:
        self._protocol = protocol
        self._end_of_reasoning = end_of_reasoning
        self._num_tokens = 0
        self._num_reasoning: int | None = None if reasons else 0
        self.drafts: Mapping[str, Any] = {}
        """What has come of drafts: written where the protocol names such counts, in Chat Completions."""

    def take(self, token_id: int | None) -> None:
        """Counts the next token."""
        if token_id is not None and token_id == self._end_of_reasoning and self._num_reasoning is None:
            self._num_reasoning = self._num_tokens
        self._num_tokens += 1

    def put_into(self, document: dict[str, Any]) -> dict[str, Any]:
        """The document with its usage corrected."""
        usage = document.get("response", document)["usage"]
        prompt, output = ("prompt", "completion") if self._protocol is Protocol.CHAT else ("input", "output")
        usage[f"{output}_tokens"] = self._num_tokens
        if "total_tokens" in usage:
            usage["total_tokens"] = usage[f"{prompt}_tokens"] + self._num_tokens
        details = usage.get(f"{output}_tokens_details")
        if details is not None:
            # Reasoning that no token ended lasts until a call, or to the end.
            known = details["reasoning_tokens"] if self._num_reasoning is None else self._num_reasoning
            details["reasoning_tokens"] = min(known, self._num_tokens)
        if self._protocol is Protocol.CHAT and self.drafts:
            usage["completion_tokens_details"] = {**(details or {}), **self.drafts}
        return document


ACCEPTED = "accepted_prediction_tokens"
REJECTED = "rejected_prediction_tokens"


def draft_details(num_draft_tokens: int, num_accepted_tokens: int, undrafted_because: str | None) -> dict[str, Any]:
    """Entries of `completion_tokens_details`: the drafts of one answer that were verified, or why there were none."""
    if undrafted_because is not None:
        return {"undrafted_because": undrafted_because}
    return {ACCEPTED: num_accepted_tokens, REJECTED: num_draft_tokens - num_accepted_tokens}


def compact(document: dict[str, Any]) -> str:
    """JSON without spaces, as the codec writes it."""
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"))


_RESPONSES = {
    Protocol.CHAT: recipe.ChatCompletionResponse,
    Protocol.RESPONSES: recipe.ResponsesResponse,
    Protocol.MESSAGES: recipe.MessagesResponse,
}

_Generator = recipe.ChatCompletionChunkGenerator | recipe.ResponsesChunkGenerator | recipe.MessagesChunkGenerator


def _generator(protocol: Protocol, wire: WireRequest, identity: Identity) -> _Generator:
    name, model = identity.name, identity.model
    if protocol is Protocol.CHAT:
        return recipe.ChatCompletionRequest.chunk_generator(wire.request, name, model)
    if protocol is Protocol.MESSAGES:
        return recipe.MessagesRequest.chunk_generator(wire.request, name, model)
    generator = recipe.ResponsesRequest.chunk_generator(wire.request, name, model)
    if wire.namespaces:
        generator = generator.with_namespace_tool_map(dict(wire.namespaces))
    return generator if wire.echo is None else generator.with_echo(wire.echo)
