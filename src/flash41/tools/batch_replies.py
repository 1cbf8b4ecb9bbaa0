"""Answers of the engine to bodies of the OpenAI completion calls.

Two keys are our own: `reasoning_content` as the hosted service has it, and `seed`, with which the same call gives the
same answer again.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from flash41.chat.conversation import MODEL_NAME, ToolCall
from flash41.chat.protocols import draft_details
from flash41.chat.tokenizer import Tokenizer
from flash41.chat.watching import ParsedAnswer
from flash41.engine.answers import Answer
from flash41.engine.events import SampledToken
from flash41.engine.request import FinishReason, Request
from flash41.tools.batch_requests import ChatJob, TextJob


def chat_reply(
    job: ChatJob, answer: Answer, tokenizer: Tokenizer, digest: str, asked: Mapping[str, Any]
) -> dict[str, Any]:
    """Body of a chat.completion."""
    parsed = job.watcher.finish("length" if job.request.finish_reason is FinishReason.LENGTH else "stop")
    choice = {
        "index": 0,
        "message": _message(parsed, job.conversation.thinking),
        "logprobs": _chat_logprobs(job, answer.tokens, tokenizer, parsed.num_reasoning_tokens),
        "finish_reason": parsed.finish_reason,
    }
    usage = _usage(job.request, parsed.num_reasoning_tokens)
    return _body(f"chatcmpl-{digest}", "chat.completion", asked, choice, usage, job.request.seed)


def text_reply(
    job: TextJob, answer: Answer, tokenizer: Tokenizer, digest: str, asked: Mapping[str, Any]
) -> dict[str, Any]:
    """Body of a text_completion."""
    choice = {
        "index": 0,
        "text": job.watcher.finish(),
        "logprobs": None if job.request.params.logprobs is None else _text_logprobs(answer.tokens, tokenizer),
        "finish_reason": "length" if job.request.finish_reason is FinishReason.LENGTH else "stop",
    }
    return _body(f"cmpl-{digest}", "text_completion", asked, choice, _usage(job.request, 0), job.request.seed)


def refusal(message: str) -> dict[str, Any]:
    """Body of a call that was refused."""
    return {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": "invalid_request"}}


def _body(
    name: str, kind: str, asked: Mapping[str, Any], choice: dict[str, Any], usage: dict[str, Any], seed: int
) -> dict[str, Any]:
    model = asked.get("model")
    return {
        "id": name,
        "object": kind,
        "created": int(time.time()),
        "model": model if isinstance(model, str) else MODEL_NAME,
        "choices": [choice],
        "usage": usage,
        "seed": seed,
    }


def _message(parsed: ParsedAnswer, thinking: bool) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": parsed.content}
    if thinking:
        message["reasoning_content"] = parsed.reasoning
    if parsed.tool_calls:
        message["tool_calls"] = [_call(index, call) for index, call in enumerate(parsed.tool_calls)]
    return message


def _call(index: int, call: ToolCall) -> dict[str, Any]:
    function = {"name": call.name, "arguments": call.arguments}
    return {"index": index, "id": call.id, "type": "function", "function": function}


def _usage(request: Request, num_reasoning_tokens: int) -> dict[str, Any]:
    num_prompt, num_output = len(request.prompt_ids), len(request.output_ids)
    return {
        "prompt_tokens": num_prompt,
        "completion_tokens": num_output,
        "total_tokens": num_prompt + num_output,
        "completion_tokens_details": {"reasoning_tokens": num_reasoning_tokens, **_drafts(request)},
    }


def _drafts(request: Request) -> dict[str, Any]:
    """What has come of drafts, under the names the calls have for it; nothing where there were none to be had."""
    if not request.num_draft_tokens and request.undrafted_because is None:
        return {}
    return draft_details(request.num_draft_tokens, request.num_accepted_tokens, request.undrafted_because)


def _chat_logprobs(
    job: ChatJob, tokens: Sequence[SampledToken], tokenizer: Tokenizer, num_reasoning_tokens: int
) -> dict[str, Any] | None:
    if job.request.params.logprobs is None:
        return None
    entries = [
        {
            **_entry(tokenizer, token.token_id, token.logprob),
            "top_logprobs": [_entry(tokenizer, *alternative) for alternative in token.top_logprobs],
        }
        for token in tokens
    ]
    found: dict[str, Any] = {"content": entries[num_reasoning_tokens:]}
    if job.conversation.thinking:
        found["reasoning_content"] = entries[:num_reasoning_tokens]
    return found


def _entry(tokenizer: Tokenizer, token_id: int, logprob: float | None) -> dict[str, Any]:
    written = tokenizer.token_bytes(token_id)
    return {"token": tokenizer.token_text(token_id), "logprob": logprob, "bytes": list(written)}


def _text_logprobs(tokens: Sequence[SampledToken], tokenizer: Tokenizer) -> dict[str, Any]:
    decoder, offsets, length = tokenizer.incremental(), list[int](), 0
    for token in tokens:
        offsets.append(length)
        length += len(decoder.push(token.token_id))
    return {
        "tokens": [tokenizer.token_text(token.token_id) for token in tokens],
        "token_logprobs": [token.logprob for token in tokens],
        "top_logprobs": [
            {tokenizer.token_text(token_id): logprob for token_id, logprob in token.top_logprobs} for token in tokens
        ],
        "text_offset": offsets,
    }
