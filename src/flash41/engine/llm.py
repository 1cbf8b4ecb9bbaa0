"""The model in one object: text or ids in, text out.

    from flash41 import LLM, SamplingParams

    llm = LLM()                                    # the embedded default; LLM("DIR") opens a checkpoint
    for answer in llm.generate(["Once upon a time"], SamplingParams(max_tokens=16, seed=1)):
        print(answer.text)

`generate` is raw: a text is encoded as it stands behind BOS, control tokens included.  `chat` renders messages the way
the model was trained to read them.  `stream` yields events as they come.
"""

import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from flash41.chat.conversation import ChatCodec, Conversation, Effort, Message
from flash41.chat.parsing import DeltaKind
from flash41.chat.tokenizer import Tokenizer
from flash41.checkpoint.default import default_checkpoint
from flash41.config.huggingface import read_config
from flash41.config.names import named_wish
from flash41.config.run import RunWish
from flash41.config.run_rules import check
from flash41.engine.engine import Engine
from flash41.engine.load import load_model
from flash41.engine.request import FinishReason, Request, SamplingParams
from flash41.engine.scheduler import SampledToken, SchedulerLimits
from flash41.errors import RequestError, complaint
from flash41.kernels.select import select_kernels

DEFAULT_MODEL_LEN = 8192
"""Positions of a request where nobody asks for more: caches are laid out for the longest one."""

THREADED_HIDDEN_SIZE = 1024
"""Below this width one thread computes: waking a second one costs more than it brings, most of all on a busy machine."""

Prompt = str | Sequence[int]
Progress = Callable[[int, int], None]
"""Called with (answers finished, answers in all)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """Wall-clock seconds of one answer, from the moment its request was queued."""

    first_token_seconds: float
    """Until the first token."""
    total_seconds: float
    """Until the last token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """One answer."""

    prompt_ids: tuple[int, ...]
    output_ids: tuple[int, ...]
    """Tokens of the answer, EOS included when it ended it."""
    text: str
    """The answer without EOS; in `chat`, what follows the reasoning."""
    reasoning: str | None
    """Text of the reasoning part, in `chat` with thinking."""
    finish_reason: FinishReason
    seed: int
    """The seed in effect; giving it again gives the same answer."""
    logprobs: tuple[SampledToken, ...] | None
    """Per token, where the parameters ask for them."""
    timings: Timings


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamEvent:
    """One token of a streamed answer."""

    token: SampledToken
    finish_reason: FinishReason | None
    """Set on the last event."""


@dataclass(slots=True)
class _Answer:
    """An answer in the making."""

    request: Request
    queued: float
    first: float | None = None
    last: float = 0.0
    tokens: list[SampledToken] = field(default_factory=list)

    def take(self, token: SampledToken | None) -> None:
        self.last = time.perf_counter()
        if token is not None:
            self.first = self.first or self.last
            self.tokens.append(token)


class LLM:
    """A checkpoint, opened and ready.  Raises ConfigError or CheckpointError before any weight is read."""

    def __init__(
        self,
        model: str | Path | None = None,
        *,
        profile: str = "vendor",
        kv_cache_dtype: str | None = None,
        index_cache_dtype: str | None = None,
        max_model_len: int | None = None,
        max_num_seqs: int = 8,
        max_num_batched_tokens: int = 512,
        backend: str = "auto",
        threads: int | None = None,
    ) -> None:
        self.directory = default_checkpoint() if model is None else Path(model)
        config = read_config(self.directory)
        sizes = RunWish(
            max_model_len=max_model_len or min(DEFAULT_MODEL_LEN, config.max_positions),
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            backend=backend,
            threads=threads,
        )
        wish = named_wish(sizes, profile=profile, kv_cache_dtype=kv_cache_dtype, index_cache_dtype=index_cache_dtype)
        check(wish, config)
        assert wish.max_model_len is not None
        kernels = select_kernels(backend)
        self.tokenizer = Tokenizer.from_file(self.directory / "tokenizer.json")
        self._model = load_model(self.directory, wish.profile, wish.pool, kernels)
        if threads is None and config.hidden_size < THREADED_HIDDEN_SIZE:
            threads = 1
        if threads is not None:
            torch.set_num_threads(threads)
        self.config = self._model.config
        limits = SchedulerLimits(
            max_num_seqs=wish.max_num_seqs,
            max_num_batched_tokens=wish.max_num_batched_tokens,
            max_model_len=wish.max_model_len,
            look_back=config.engram.max_ngram - 1,
        )
        self.engine = Engine(self._model.runner(wish.max_num_seqs, wish.max_model_len), limits)
        self._next_id = 0
        self._codec: ChatCodec | None = None

    @property
    def codec(self) -> ChatCodec:
        """Renders conversations; raises ConfigError when the tokenizer lacks a control token."""
        if self._codec is None:
            self._codec = ChatCodec(self.tokenizer, self.config.tokens.image)
        return self._codec

    def encode(self, prompt: Prompt) -> tuple[int, ...]:
        """Ids of a raw prompt: BOS and the text's ids, or the given ids as they are."""
        if isinstance(prompt, str):
            return (self.config.tokens.bos, *self.tokenizer.encode_with_control(prompt))
        return tuple(prompt)

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        progress: Progress | None = None,
    ) -> list[Completion]:
        """One answer per prompt, in the order of the prompts; all of them share the engine's steps.

        Raises RequestError, naming the prompt, before anything is computed.
        """
        several = _as_prompts(prompts)
        each = _as_params(params, len(several))
        answers = [self._queue(self.encode(prompt), one) for prompt, one in zip(several, each, strict=True)]
        self._run(answers, progress)
        return [self._raw(answer) for answer in answers]

    def chat(
        self,
        messages: Sequence[Message],
        params: SamplingParams | None = None,
        *,
        thinking: bool = False,
        effort: Effort | None = None,
    ) -> Completion:
        """The assistant's answer to a conversation."""
        conversation = self.codec.conversation(messages, thinking=thinking, effort=effort)
        answer = self._queue(self.codec.encode(conversation).ids, params or SamplingParams())
        self._run([answer], None)
        return self._parsed(answer, conversation)

    def stream(
        self, prompt_ids: Sequence[int], params: SamplingParams, seed: int | None = None
    ) -> Iterator[StreamEvent]:
        """Tokens of one answer as they come; closing the iterator aborts the request.

        `seed` overrides that of the parameters, for a caller that drew one.
        """
        answer = self._queue(tuple(prompt_ids), params, seed)
        try:
            while answer.request.finish_reason is None:
                for event in self.engine.step():
                    if event.token is not None and event.request_id == answer.request.request_id:
                        yield StreamEvent(token=event.token, finish_reason=event.finish_reason)
        finally:
            if answer.request.finish_reason is None:
                self.engine.abort(answer.request.request_id)

    def _queue(self, ids: tuple[int, ...], params: SamplingParams, seed: int | None = None) -> _Answer:
        self._check_ids(ids, params)
        chosen = params.seed if seed is None else seed
        request = Request(
            request_id=self._next_id,
            prompt_ids=ids,
            params=params,
            seed=secrets.randbits(63) if chosen is None else chosen,
            eos_token_id=self.config.tokens.eos,
        )
        self._next_id += 1
        self.engine.add(request)
        return _Answer(request, time.perf_counter())

    def _check_ids(self, ids: Sequence[int], params: SamplingParams) -> None:
        size = self.config.vocab_size
        asked = [*ids, *params.logit_bias, *params.stop_token_ids]
        wrong: list[object] = [token for token in asked if isinstance(token, bool) or not isinstance(token, int)]
        wrong = wrong or [token for token in asked if not 0 <= token < size]
        if wrong:
            raise RequestError(complaint("token ids", wrong[:8], f"integers from 0 to {size - 1}"))

    def _run(self, answers: Sequence[_Answer], progress: Progress | None) -> None:
        by_id = {answer.request.request_id: answer for answer in answers}
        done = 0
        try:
            while done < len(answers):
                for event in self.engine.step():
                    by_id[event.request_id].take(event.token)
                    done += event.finish_reason is not None
                    if event.finish_reason is not None and progress is not None:
                        progress(done, len(answers))
        finally:
            for answer in answers:
                if answer.request.finish_reason is None:
                    self.engine.abort(answer.request.request_id)

    def _raw(self, answer: _Answer) -> Completion:
        return self._completion(answer, self.tokenizer.decode(self._visible(answer)), None)

    def _parsed(self, answer: _Answer, conversation: Conversation) -> Completion:
        parser = self.codec.parser(conversation)
        deltas = [delta for token_id in self._visible(answer) for delta in parser.push(token_id)]
        deltas += parser.finish("length" if answer.request.finish_reason is FinishReason.LENGTH else "stop")
        text, reasoning = (
            "".join(delta.text for delta in deltas if delta.kind is kind)
            for kind in (DeltaKind.CONTENT, DeltaKind.REASONING)
        )
        return self._completion(answer, text, reasoning if conversation.thinking else None)

    def _visible(self, answer: _Answer) -> list[int]:
        ids, eos = answer.request.output_ids, self.config.tokens.eos
        ended = bool(ids) and ids[-1] == eos and not answer.request.params.ignore_eos
        return ids[:-1] if ended else list(ids)

    def _completion(self, answer: _Answer, text: str, reasoning: str | None) -> Completion:
        request = answer.request
        assert request.finish_reason is not None, request
        assert answer.first is not None, request
        return Completion(
            prompt_ids=tuple(request.prompt_ids),
            output_ids=tuple(request.output_ids),
            text=text,
            reasoning=reasoning,
            finish_reason=request.finish_reason,
            seed=request.seed,
            logprobs=None if request.params.logprobs is None else tuple(answer.tokens),
            timings=Timings(
                first_token_seconds=answer.first - answer.queued, total_seconds=answer.last - answer.queued
            ),
        )


def _as_prompts(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt or several: a text, ids, texts, or lists of ids."""
    if isinstance(prompts, str):
        return [prompts]
    listed = list(prompts)
    if listed and all(isinstance(item, int) for item in listed):
        return [[item for item in listed if isinstance(item, int)]]
    return [item for item in listed if not isinstance(item, int)]


def _as_params(params: SamplingParams | Sequence[SamplingParams] | None, count: int) -> list[SamplingParams]:
    if params is None or isinstance(params, SamplingParams):
        return [params or SamplingParams()] * count
    if len(params) != count:
        raise RequestError(complaint("sampling parameters", len(params), f"one, or one per prompt ({count})"))
    return list(params)
