"""Bodies of the OpenAI completion calls to requests of the engine.

Conversations follow the rules of the official codec, with its wording where it refuses.  Unlike the hosted service this
engine takes temperature and top_p as asked, and honours penalties, logit_bias, top_k, min_p and max_completion_tokens.
A response_format, a required tool and a strict one are enforced token by token.

spec: chat.md section 9.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import deepseek_recipe as recipe

from flash41.chat.constraints import AnswerConstraint
from flash41.chat.conversation import Conversation
from flash41.chat.stops import TextWatcher, check_stop
from flash41.chat.watching import ChatWatcher
from flash41.engine.llm import LLM
from flash41.engine.prompt_images import num_widened
from flash41.engine.request import Request, SamplingParams
from flash41.errors import RequestError, combined, complaint

COMPLETION_TOKENS = 16
"""Tokens of a raw completion unless asked otherwise, as in the OpenAI call."""
AS_ASKED = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "seed",
)
MUST_BE = {"stream": False, "n": 1, "best_of": 1, "echo": False, "suffix": ""}
"""What these may be, when given at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatJob:
    """A conversation to be answered."""

    request: Request
    watcher: ChatWatcher
    conversation: Conversation
    constraint: AnswerConstraint | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TextJob:
    """A raw text to be continued."""

    request: Request
    watcher: TextWatcher


def chat_job(llm: LLM, body: Mapping[str, Any]) -> ChatJob:
    """The request of a Chat Completions body; raises RequestError."""
    _check_fixed(body)
    given = _without_nulls(body)
    if "max_completion_tokens" in given:
        given.setdefault("max_tokens", given["max_completion_tokens"])
    conversation = llm.codec.convert(given)
    prompt = llm.codec.encode(conversation)
    pictures = llm.pictures(prompt)
    try:
        length = num_widened(prompt.ids, pictures)
        max_tokens = conversation.request.resolve_max_tokens(length, llm.plan.max_model_len)
    except recipe.ConversionError as error:
        raise RequestError(str(error)) from error
    options = conversation.request.inference_options
    logprobs = (options.top_logprobs or 0) if options.logprobs else None
    params = _params(given, max_tokens, logprobs)
    constraint, watcher = llm.answer_constraint(params, conversation), llm.chat_watcher(params, conversation)
    request = llm.request(prompt.ids, params, watcher=watcher, constraint=constraint, pictures=pictures)
    return ChatJob(request=request, watcher=watcher, conversation=conversation, constraint=constraint)


def text_job(llm: LLM, body: Mapping[str, Any]) -> TextJob:
    """The request of a Completions body; raises RequestError."""
    _check_fixed(body)
    given = _without_nulls(body)
    ids = llm.encode(_prompt(given.get("prompt")))
    room = max(1, llm.plan.max_model_len - len(ids))
    asked = given.get("max_tokens")
    params = _params(given, min(COMPLETION_TOKENS, room) if asked is None else asked, given.get("logprobs"))
    if asked is not None and asked > room:
        thing, expected = "max_tokens", f"at most {room} behind a prompt of {len(ids)} tokens"
        raise RequestError(complaint(thing, asked, expected, "shorten it or raise max_model_len"))
    watcher = llm.text_watcher(params, check_stop(_strings(given.get("stop", ()))))
    return TextJob(request=llm.request(ids, params, watcher=watcher), watcher=watcher)


def _without_nulls(body: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in body.items() if value is not None}


def _check_fixed(body: Mapping[str, Any]) -> None:
    wrong = {name: body[name] for name, only in MUST_BE.items() if body.get(name) is not None and body[name] != only}
    if wrong:
        raise RequestError(combined([complaint(name, got, f"{MUST_BE[name]!r}") for name, got in wrong.items()]))


def _params(given: Mapping[str, Any], max_tokens: Any, logprobs: Any) -> SamplingParams:
    asked = {name: given[name] for name in AS_ASKED if name in given}
    bias = _bias(given.get("logit_bias", {}))
    return SamplingParams(max_tokens=max_tokens, logprobs=logprobs, logit_bias=bias, **asked)


def _bias(given: object) -> dict[int, Any]:
    """Biases by token id; JSON can only spell the ids as texts."""
    if not isinstance(given, dict) or not all(key.isascii() and key.isdigit() for key in given):
        raise RequestError(complaint("logit_bias", given, "an object from token ids to numbers"))
    return {int(key): value for key, value in given.items()}


def _prompt(given: object) -> str | list[int]:
    """The one prompt of a body: a text, ids, or a list that holds one of these."""
    if isinstance(given, list) and len(given) == 1 and isinstance(given[0], (str, list)):
        given = given[0]
    if isinstance(given, str) or (isinstance(given, list) and not any(isinstance(item, (str, list)) for item in given)):
        return given
    raise RequestError(complaint("prompt", given, "one text or one list of token ids"))


def _strings(given: object) -> str | list[str] | tuple[str, ...]:
    if isinstance(given, (str, list, tuple)):
        return given
    raise RequestError(complaint("stop", given, "a text or a list of texts"))
