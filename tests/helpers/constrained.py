"""A model that would write anything: it draws among the tokens that a constraint allows."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from flash41.chat.constraints import AnswerConstraint, AnswerConstraints
from flash41.chat.conversation import ChatCodec
from flash41.chat.watching import ChatWatcher, ParsedAnswer
from helpers.tiny_tokenizer import TINY_IMAGE_ID, TINY_TOKENIZER

EOS = 1
VOCAB_SIZE = 1024
CODEC = ChatCodec.from_directory(TINY_TOKENIZER, TINY_IMAGE_ID)
CONSTRAINTS = AnswerConstraints(CODEC, VOCAB_SIZE, EOS)
CHAT: Mapping[str, Any] = {"thinking": {"type": "disabled"}}

Choice = Callable[[Sequence[int], bytes], int]
"""From the allowed tokens and the text so far to the next token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Walk:
    """One answer that went through a constraint."""

    text: str
    """All of it, control tokens spelled out, without EOS."""
    is_complete: bool
    """Whether it ended with EOS."""
    answer: ParsedAnswer


def asks_for(schema: Any) -> dict[str, Any]:
    """A body's response format."""
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "wish", "schema": schema}}}


def tool(name: str, parameters: Any = None, strict: bool | None = None) -> dict[str, Any]:
    """A declared tool; without parameters it has none."""
    function = {"name": name, "parameters": parameters, "strict": strict}
    return {"type": "function", "function": {key: value for key, value in function.items() if value is not None}}


def of_object(**properties: Any) -> dict[str, Any]:
    """A schema of an object that has all of these properties and no other."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def constraint(body: Mapping[str, Any]) -> AnswerConstraint | None:
    return CONSTRAINTS.constraint(CODEC.convert({"messages": [{"role": "user", "content": "json"}], **body}))


def drawn(seed: int) -> Choice:
    """Any allowed token, each as likely."""
    source = random.Random(seed)
    return lambda allowed, _: source.choice(allowed)


def walk(body: Mapping[str, Any], choose: Choice, max_tokens: int = 400) -> Walk:
    """An answer to a body that is constrained, by a chooser of tokens."""
    conversation = CODEC.convert({"messages": [{"role": "user", "content": "json"}], **body})
    held = CONSTRAINTS.constraint(conversation)
    assert held is not None
    watcher, ids = ChatWatcher(CODEC, conversation, EOS), list[int]()
    written = b""
    for _ in range(max_tokens):
        allowed = np.nonzero(held.allowed())[0].tolist()
        token_id = choose(allowed, written)
        assert token_id in allowed
        held.push(token_id)
        if token_id == EOS:
            break
        ids.append(token_id)
        written += CODEC.tokenizer.token_bytes(token_id)
        watcher.push(token_id)
    held.check()
    is_complete = len(ids) < max_tokens
    answer = watcher.finish("stop" if is_complete else "length")
    return Walk(text=CODEC.tokenizer.decode(ids), is_complete=is_complete, answer=answer)


def accepts(body: Mapping[str, Any], text: str) -> bool:
    """Whether an answer of exactly this text (control tokens spelled out), then EOS, is allowed."""
    held = constraint(body)
    assert held is not None
    for token_id in [*CODEC.tokenizer.encode_with_control(text), EOS]:
        if not held.allowed()[token_id]:
            return False
        held.push(token_id)
    return True
