"""The model in one object: text or ids in, text out.

    from flash41 import LLM, SamplingParams

    llm = LLM()                                    # the embedded default; LLM("DIR") opens a checkpoint
    for answer in llm.generate(["Anna keeps a"], SamplingParams(max_tokens=16, seed=1)):
        print(answer.text)

`generate` is raw: a text is encoded as it stands behind BOS, control tokens included.  `chat` renders messages the way
the model was trained to read them.  `stream` yields events as they come.
"""

import logging
import secrets
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from flash41.chat.constraints import AnswerConstraint
from flash41.chat.conversation import ChatCodec, Conversation, Effort, Message
from flash41.chat.conversation import Prompt as CodecPrompt
from flash41.chat.images import Picture
from flash41.chat.stops import TextWatcher, check_stop
from flash41.chat.tokenizer import Tokenizer
from flash41.chat.watching import ChatWatcher
from flash41.checkpoint.default import default_checkpoint
from flash41.checkpoint.resident import Progress as LoadProgress
from flash41.config.huggingface import read_config
from flash41.config.names import named_wish
from flash41.config.run import DEFAULT_IMAGE_INTERVAL, RunWish
from flash41.engine.answers import Answer, Completion, StreamEvent
from flash41.engine.llm_images import Pictured, pictures_of_prompt, raw_pictures
from flash41.engine.load import ModelChange, load_model
from flash41.engine.open_answers import OpenAnswers, Progress
from flash41.engine.prompt_images import image_sizes, placed
from flash41.engine.prompts import Prompt, as_images, as_params, as_prompts, check_ids, plain
from flash41.engine.request import Constraint, FinishReason, Request, SamplingParams, StopWatcher
from flash41.engine.words import Words
from flash41.errors import RequestError, combined
from flash41.kernels.select import select_kernels
from flash41.kernels.threads import choose_threads
from flash41.planning.memory import available_bytes
from flash41.planning.resolve import default_block_size, resolve

logger = logging.getLogger(__name__)

UNDRAFTED = "images in the request"
"""Why a request with pictures gets no drafts (spec: vision.md section 6)."""


class LLM:
    """A checkpoint, opened and ready.  Raises ConfigError or CheckpointError before any weight is read.

    `loading` is told how far the weights are that are read into memory; `change` makes another model of it, for
    experiments.  One thread uses it at a time.  Streams may be open side by side, and `generate` may run between their
    events.
    """

    def __init__(
        self,
        model: str | Path | None = None,
        loading: LoadProgress | None = None,
        change: ModelChange | None = None,
        *,
        profile: str = "vendor",
        kv_cache_dtype: str | None = None,
        index_cache_dtype: str | None = None,
        max_model_len: int | None = None,
        max_num_seqs: int = 8,
        max_num_batched_tokens: int = 512,
        block_size: int | None = None,
        memory_bytes: int | None = None,
        prefix_cache: bool = True,
        state_image_interval: int = DEFAULT_IMAGE_INTERVAL,
        decoder_replay: bool = False,
        prefix_replay: bool = False,
        draft: str = "off",
        draft_accept: str | None = None,
        images: bool = True,
        backend: str = "auto",
        threads: int | None = None,
        weights: str = "auto",
        weights_memory_bytes: int | None = None,
    ) -> None:
        self.directory = default_checkpoint() if model is None else Path(model)
        config = read_config(self.directory)
        sizes = RunWish(
            max_model_len=max_model_len,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            block_size=default_block_size(config) if block_size is None else block_size,
            memory_bytes=memory_bytes,
            prefix_cache=prefix_cache,
            state_image_interval=state_image_interval,
            decoder_replay=decoder_replay,
            prefix_replay=prefix_replay,
            images=images,
            backend=backend,
            threads=threads,
            weights_memory_bytes=weights_memory_bytes,
        )
        wish = named_wish(
            sizes,
            profile=profile,
            kv_cache_dtype=kv_cache_dtype,
            index_cache_dtype=index_cache_dtype,
            draft=draft,
            draft_accept=draft_accept,
            weights=weights,
        )
        self.plan = resolve(wish, config, available_bytes())
        for choice in self.plan.choices:
            logger.info("%s", choice)
        kernels = select_kernels(backend)
        self.tokenizer = Tokenizer.from_file(self.directory / "tokenizer.json")
        self._model = load_model(
            self.directory,
            wish.profile,
            wish.pool,
            kernels,
            drafts=wish.drafts,
            images=images,
            residence=self.plan.residence,
            progress=loading,
            change=change,
        )
        choose_threads(threads, config.hidden_size)
        self.config = self._model.config
        self.engine = self._model.engine(self.plan)
        self._next_id = 0
        self._answers = OpenAnswers(self.engine)
        self._words = Words(self.tokenizer, self.config)

    @property
    def codec(self) -> ChatCodec:
        """Renders conversations; raises ConfigError when the tokenizer lacks a control token."""
        return self._words.codec

    def pictures(self, prompt: CodecPrompt) -> tuple[Picture, ...]:
        """The pictures of a rendered prompt.  Raises RequestError for what is no data URL or no sound image."""
        return pictures_of_prompt(prompt, image_sizes(self.config.vision), self.plan.max_model_len)

    def encode(self, prompt: Prompt) -> tuple[int, ...]:
        """Ids of a raw prompt: BOS and the text's ids, or the given ids as they are."""
        if isinstance(prompt, str):
            return (self.config.tokens.bos, *self.tokenizer.encode_with_control(prompt))
        return tuple(map(plain, prompt))

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        progress: Progress | None = None,
        *,
        stop: str | Sequence[str] = (),
        images: Sequence[Sequence[Pictured]] | None = None,
    ) -> list[Completion]:
        """One answer per prompt, in the order of the prompts; all of them share the engine's steps.

        A list of integers is one prompt, an empty list none.  A stop string ends an answer, whose text is cut before
        it.  `images` has a list for each prompt: what stands in the place of its placeholders, one by one.  Raises
        RequestError with the faults of all prompts before anything is computed.
        """
        several, strings = as_prompts(prompts), check_stop(stop)
        requests = self._requests(several, as_params(params, len(several)), as_images(images, len(several)))
        watchers = [self.text_watcher(request.params, strings) for request in requests]
        for request, watcher in zip(requests, watchers, strict=True):
            request.stop_watcher = watcher
        answers = self._answers.run(requests, progress)
        return [answer.completion(watcher.finish(), None) for answer, watcher in zip(answers, watchers, strict=True)]

    def chat(
        self,
        messages: Sequence[Message],
        params: SamplingParams | None = None,
        *,
        thinking: bool = False,
        effort: Effort | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
        tool_choice: str | Mapping[str, Any] | None = None,
        parallel_tool_calls: bool | None = None,
        response_format: Mapping[str, Any] | None = None,
        stop: str | Sequence[str] = (),
    ) -> Completion:
        """The assistant's answer to a conversation; a stop string ends it in the content, not in the reasoning.

        Contents may hold pictures (`flash41.chat.parts`), from data URLs where a part is spelled as on the wire.
        Tools, choice and format as in Chat Completions; what they ask of the answer is enforced token by token, unless
        max_tokens, a stop string or a stop token cuts it short.  Raises RequestError for what cannot be enforced.
        """
        conversation = self.codec.conversation(
            messages,
            thinking=thinking,
            effort=effort,
            tools=tools,
            tool_choice=tool_choice,
            parallel_tool_calls=parallel_tool_calls,
            response_format=response_format,
            stop=check_stop(stop),
        )
        params = params or SamplingParams()
        constraint, watcher = self.answer_constraint(params, conversation), self.chat_watcher(params, conversation)
        prompt = self.codec.encode(conversation)
        pictures = self.pictures(prompt)
        request = self.request(prompt.ids, params, watcher=watcher, constraint=constraint, pictures=pictures)
        (answer,) = self._answers.run([request], None)
        if constraint is not None:
            constraint.check()
        parsed = watcher.finish("length" if answer.request.finish_reason is FinishReason.LENGTH else "stop")
        reasoning = parsed.reasoning if conversation.thinking else None
        return answer.completion(parsed.content, reasoning, parsed.tool_calls)

    def stream(
        self,
        prompt_ids: Sequence[int],
        params: SamplingParams,
        seed: int | None = None,
        *,
        stop: str | Sequence[str] = (),
        pictures: Sequence[Picture] = (),
    ) -> Generator[StreamEvent, None, None]:
        """Tokens of one answer as they come; closing the iterator aborts the request.

        The ids have one placeholder for each of the pictures.  `seed` overrides that of the parameters, for a caller
        that drew one.  A stop string ends the answer with the token that completes it in the raw text; whoever shows
        the text cuts it.  Raises RequestError at once; the request is queued when the first event is asked for.
        """
        watcher = self.text_watcher(params, check_stop(stop))
        return self._answers.events(self.request(tuple(prompt_ids), params, seed, watcher, pictures=pictures))

    def as_finished(self, requests: Iterable[Request]) -> Iterator[Answer]:
        """Answers in the order they end; the next request is taken whenever fewer than `max_num_seqs` are open.

        Closing the iterator aborts what is open.
        """
        return self._answers.as_finished(requests, self.plan.max_num_seqs)

    def text_watcher(self, params: SamplingParams, stop: Sequence[str]) -> TextWatcher:
        """Collects the raw text of one answer and ends it at the first of the checked stop strings."""
        return self._words.text_watcher(params, stop)

    def chat_watcher(self, params: SamplingParams, conversation: Conversation) -> ChatWatcher:
        """Parses one answer to a conversation and ends it at the conversation's stop strings."""
        return self._words.chat_watcher(params, conversation)

    def answer_constraint(self, params: SamplingParams, conversation: Conversation) -> AnswerConstraint | None:
        """Holds one answer to the conversation's response format and tools; None where nothing is asked of it.

        Raises RequestError for what cannot be enforced.
        """
        return self._words.constraint(params, conversation)

    def _requests(
        self, prompts: Sequence[Prompt], params: Sequence[SamplingParams], images: Sequence[Sequence[Pictured]]
    ) -> list[Request]:
        requests, faults = [], []
        for number, (prompt, one, shown) in enumerate(zip(prompts, params, images, strict=True)):
            try:
                pictures = raw_pictures(shown, image_sizes(self.config.vision))
                requests.append(self.request(self.encode(prompt), one, pictures=pictures))
            except RequestError as error:
                faults.append(str(error) if len(prompts) == 1 else f"prompt {number}: {error}")
        if faults:
            raise RequestError(combined(faults))
        return requests

    def request(
        self,
        ids: tuple[int, ...],
        params: SamplingParams,
        seed: int | None = None,
        watcher: StopWatcher | None = None,
        cache_salt: bytes = b"",
        constraint: Constraint | None = None,
        pictures: Sequence[Picture] = (),
    ) -> Request:
        """A request that can run; nothing is queued.  Raises RequestError if it never could.

        The ids have one placeholder for each picture, which is widened to its span.  Only requests with equal salts
        find each other's tokens in the prefix cache, and each other's pictures.
        """
        check_ids(ids, params, self.config.vocab_size)
        chosen = params.seed if seed is None else seed
        widened, images = placed(ids, pictures, self.config.tokens.image, cache_salt)
        request = Request(
            request_id=self._next_id,
            prompt_ids=widened,
            params=params,
            seed=secrets.randbits(63) if chosen is None else chosen,
            eos_token_id=self.config.tokens.eos,
            stop_watcher=watcher,
            cache_salt=cache_salt,
            constraint=constraint,
            images=images,
            undrafted_because=UNDRAFTED if images and self.engine.drafting is not None else None,
        )
        self.engine.check(request)
        self._next_id += 1
        return request
