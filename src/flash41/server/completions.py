"""Raw completions: prompts as they are, texts as they come.

A text stands behind the begin-of-sentence token and may spell control tokens; ids are taken as given.  Several prompts
and several choices are answered together; choice k of prompt p has index p * n + k.
"""

import contextlib
import secrets
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flash41.chat.protocols import WireEvent, compact
from flash41.chat.stops import TextWatcher
from flash41.chat.tokenizer import Tokenizer
from flash41.engine.events import SampledToken
from flash41.engine.request import SamplingParams
from flash41.errors import Flash41Error, RequestError
from flash41.server.api_errors import ApiError, refused
from flash41.server.conversations import check_model, check_room, check_size, sampling
from flash41.server.replies import Tally, drafts_of, engine_finish, interleaved, summed_details
from flash41.server.schemas import LARGEST_SEED, CompletionBody
from flash41.server.service import Generation, Job, ModelFacts, Service
from flash41.server.settings import ServerSettings

DEFAULT_MAX_TOKENS = 16
"""Tokens of an answer unless asked otherwise, as in the OpenAI call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextCall:
    """Texts to be continued."""

    jobs: tuple[Job, ...]
    """One per choice, the choices of one prompt beside each other."""
    num_per_prompt: int
    stop: tuple[str, ...]
    stream: bool
    includes_usage: bool

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of all prompts, each counted once."""
        return sum(len(job.prompt_ids) for job in self.jobs[:: self.num_per_prompt])


def count_choices(record: CompletionBody) -> int:
    """Answers that a body asks for."""
    prompt = record.prompt
    several = isinstance(prompt, list) and bool(prompt) and not isinstance(prompt[0], int)
    return (len(prompt) if several else 1) * (record.n or 1)


def read_call(record: CompletionBody, service: Service, settings: ServerSettings, salt: bytes) -> TextCall:
    """The call of a body; raises ApiError."""
    facts, count = service.facts, record.n or 1
    check_model(record.model, facts)
    _check_refused(record)
    prompts = [_ids(prompt, service) for prompt in _prompts(record, settings)]
    seed = secrets.randbits(63) if record.seed is None else record.seed
    stop = (record.stop,) if isinstance(record.stop, str) else tuple(record.stop or ())
    jobs = list[Job]()
    for ids in prompts:
        params = _params(record, len(ids), facts)
        for _ in range(count):
            chosen = (seed + len(jobs)) & LARGEST_SEED
            jobs.append(Job(prompt_ids=ids, params=params, seed=chosen, stop=stop, salt=salt))
    usage = (record.stream_options or {}).get("include_usage") is True
    return TextCall(jobs=tuple(jobs), num_per_prompt=count, stop=stop, stream=bool(record.stream), includes_usage=usage)


def _check_refused(record: CompletionBody) -> None:
    if record.echo:
        raise ApiError(400, "echo is not supported: put the prompt in front of the answer yourself", param="echo")
    if record.suffix:
        raise ApiError(400, "suffix is not supported: no format of the model for it is known", param="suffix")
    if record.best_of not in (None, record.n or 1):
        raise ApiError(400, "best_of is not supported: ask for n answers and choose", param="best_of")


def _prompts(record: CompletionBody, settings: ServerSettings) -> list[str | list[int]]:
    prompt = record.prompt
    if isinstance(prompt, str):
        return [prompt]
    texts = [item for item in prompt if not isinstance(item, int)]
    prompts: list[str | list[int]] = list(texts) if texts else [[item for item in prompt if isinstance(item, int)]]
    if len(prompts) > settings.max_prompts:
        raise ApiError(400, f"at most {settings.max_prompts} prompts may be sent together", param="prompt")
    return prompts


def _ids(prompt: str | list[int], service: Service) -> tuple[int, ...]:
    facts = service.facts
    if isinstance(prompt, str):
        check_size(prompt, service)
        try:
            ids = (facts.bos_token_id, *service.codec.tokenizer.encode_with_control(prompt))
        except RequestError as error:
            raise refused(error) from error
    else:
        ids = tuple(prompt)
    if not ids:
        raise ApiError(400, "a prompt must have at least one token", param="prompt")
    if max(ids) >= facts.vocab_size:
        raise ApiError(400, f"token ids must be below {facts.vocab_size}", param="prompt")
    check_room(len(ids), facts)
    return ids


def _params(record: CompletionBody, num_prompt_tokens: int, facts: ModelFacts) -> SamplingParams:
    room = facts.max_model_len - num_prompt_tokens
    asked = record.max_tokens
    if asked is not None and asked > room:
        message = f"max_tokens: at most {room} behind a prompt of {num_prompt_tokens} tokens"
        raise ApiError(400, message, code="context_length_exceeded", param="max_tokens")
    max_tokens = min(DEFAULT_MAX_TOKENS, room) if asked is None else asked
    return sampling(record, facts, max_tokens, record.logprobs)


class TextReplies:
    """The replies to one call.  Must be closed."""

    def __init__(self, service: Service, call: TextCall, name: str, created: int) -> None:
        self._service = service
        self._call = call
        self._head = {"id": name, "object": "text_completion", "created": created, "model": service.facts.names[0]}
        self._generations: list[Generation] = []
        self._drafts: dict[int, dict[str, Any]] = {}
        self.tally = Tally()

    def close(self) -> None:
        """Gives up what is not finished."""
        for generation in self._generations:
            generation.close()

    def expire(self, failure: Flash41Error) -> None:
        """Gives up what is not finished, with a reason."""
        for generation in self._generations:
            generation.expire(failure)

    async def body(self) -> dict[str, Any]:
        """The whole reply."""
        self._submit()
        choices = []
        for index in range(len(self._call.jobs)):
            parts = [part async for part in self._parts(index)]
            choices.append({**parts[-1], "text": "".join(part["text"] for part in parts), "logprobs": joined(parts)})
        return {**self._head, "choices": choices, "usage": self._usage(), "seed": self._call.jobs[0].seed}

    async def events(self) -> AsyncGenerator[list[WireEvent]]:
        """Events as they become certain; the last chunk of all carries the usage."""
        self._submit()
        sources = [self._parts(index) for index in range(len(self._call.jobs))]
        num_left = len(sources)
        async with contextlib.aclosing(interleaved(sources)) as parts:
            async for part in parts:
                num_left -= part["finish_reason"] is not None
                chunk = {**self._head, "choices": [part]}
                if not num_left:
                    chunk["usage"] = self._usage()
                elif self._call.includes_usage:
                    chunk["usage"] = None
                yield [WireEvent(name=None, data=compact(chunk))]

    def _submit(self) -> None:
        for job in self._call.jobs:
            self._generations.append(self._service.submit(job))

    async def _parts(self, index: int) -> AsyncGenerator[dict[str, Any]]:
        """Pieces of one choice, each a `choices` entry."""
        job, generation = self._call.jobs[index], self._generations[index]
        tokenizer = self._service.codec.tokenizer
        text = TextWatcher(tokenizer, self._call.stop, self._service.facts.eos_token_id)
        logs = Logprobs(tokenizer) if job.params.logprobs is not None else None
        reason = None
        while reason is None:
            items = await generation.take()
            self.tally.take(items)
            self._drafts[index] = drafts_of(items[-1])
            for item in items:
                text.push(item.token.token_id)
                if item.finish_reason is not None:
                    text.finish()
                    reason = engine_finish(item.finish_reason)
            found = None if logs is None else logs.of([item.token for item in items])
            yield {"index": index, "text": text.take(), "logprobs": found, "finish_reason": reason}

    def _usage(self) -> dict[str, Any]:
        num_prompt, num_output = self._call.num_prompt_tokens, self.tally.num_generated_tokens
        usage: dict[str, Any] = {
            "prompt_tokens": num_prompt,
            "completion_tokens": num_output,
            "total_tokens": num_prompt + num_output,
            "prompt_tokens_details": {"cached_tokens": self.tally.num_cached_tokens},
        }
        if self._service.facts.drafts:
            usage["completion_tokens_details"] = summed_details([*self._drafts.values()])
        return usage


class Logprobs:
    """Log-probabilities of one choice, as the OpenAI call spells them."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = tokenizer.incremental()
        self._length = 0

    def of(self, tokens: Sequence[SampledToken]) -> dict[str, Any]:
        """Entries of the next tokens."""
        offsets = []
        for token in tokens:
            offsets.append(self._length)
            self._length += len(self._decoder.push(token.token_id))
        spell = self._tokenizer.token_text
        return {
            "tokens": [spell(token.token_id) for token in tokens],
            "token_logprobs": [token.logprob for token in tokens],
            "top_logprobs": [
                {spell(token_id): logprob for token_id, logprob in token.top_logprobs} for token in tokens
            ],
            "text_offset": offsets,
        }


def joined(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """The log-probabilities of all pieces."""
    found = [part["logprobs"] for part in parts]
    if found[0] is None:
        return None
    return {key: [entry for one in found for entry in one[key]] for key in found[0]}
