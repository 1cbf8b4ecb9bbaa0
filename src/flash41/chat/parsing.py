"""The ids of a completion, one by one, to pieces of reasoning, content and tool calls.

The official stream parser decides what a piece is; it works on bytes, tolerates markers split anywhere and heals a
missing `</think>`.  This file feeds it and turns its chunks into records.  EOS is not fed: the engine stops there.

spec: chat.md section 8.
"""

import enum
import json
from dataclasses import dataclass
from typing import Any, Literal

import deepseek_recipe as recipe

from flash41.chat.tokenizer import Tokenizer

EngineFinish = Literal["stop", "length"]


class DeltaKind(enum.Enum):
    """Where a piece of a completion belongs."""

    REASONING = "reasoning"
    CONTENT = "content"
    CALL = "call"


@dataclass(frozen=True, slots=True, kw_only=True)
class CallStart:
    """The opening of a tool call."""

    id: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """One piece of a completion; pieces of one kind (and one call) join to the whole."""

    kind: DeltaKind
    text: str
    """Reasoning, content, or a piece of a call's JSON arguments (empty where a call starts)."""
    call_index: int | None = None
    """Which call of the message, from 0; None outside calls."""
    call_start: CallStart | None = None
    """Set on the first delta of each call."""


class StreamParser:
    """Parses one completion."""

    def __init__(
        self,
        request: recipe.ConversationRequest,
        options: recipe.ParsingOptions,
        special_tokens: recipe.SpecialTokens,
        tokenizer: Tokenizer,
    ) -> None:
        options.special_tokens = special_tokens
        generator = recipe.ChatCompletionRequest.chunk_generator(request, "", "")
        self._processor = recipe.StreamProcessor(generator, options)
        self._text = tokenizer.incremental()
        self._finish_reason: str | None = None

    @property
    def finish_reason(self) -> str | None:
        """None until the message ended, through a stop string or `finish`; then stop, length or tool_calls."""
        return self._finish_reason

    @property
    def stopped(self) -> bool:
        """Whether a stop string ended the message; whoever drives the engine aborts the request then."""
        return self._finish_reason is not None

    def push(self, token_id: int) -> list[Delta]:
        """Pieces that became certain with this id; none after the end of the message."""
        return self._feed(recipe.InferenceChunk.text(self._text.push(token_id), 1))

    def finish(self, reason: EngineFinish) -> list[Delta]:
        """What was held back, when the engine ended the request; decides `finish_reason`."""
        finish = recipe.InferenceFinishReason.Stop if reason == "stop" else recipe.InferenceFinishReason.Length
        held = self._feed(recipe.InferenceChunk.text(self._text.flush(), 0))
        return held + self._feed(recipe.InferenceChunk.finish(finish))

    def _feed(self, chunk: recipe.InferenceChunk) -> list[Delta]:
        if self._finish_reason is not None:
            return []
        deltas: list[Delta] = []
        for answer in self._processor.push(chunk):
            choice = json.loads(answer.to_json())["choices"][0]
            deltas += _deltas(choice["delta"])
            self._finish_reason = choice["finish_reason"] or self._finish_reason
        return deltas


def _deltas(wire: dict[str, Any]) -> list[Delta]:
    """The pieces in one chunk; empty text carries nothing and is left out."""
    deltas = []
    if wire.get("reasoning_content"):
        deltas.append(Delta(kind=DeltaKind.REASONING, text=wire["reasoning_content"]))
    if wire.get("content"):
        deltas.append(Delta(kind=DeltaKind.CONTENT, text=wire["content"]))
    for call in wire.get("tool_calls") or ():
        start = CallStart(id=call["id"], name=call["function"]["name"]) if "id" in call else None
        arguments = call["function"].get("arguments", "")
        deltas.append(Delta(kind=DeltaKind.CALL, text=arguments, call_index=call["index"], call_start=start))
    return deltas
