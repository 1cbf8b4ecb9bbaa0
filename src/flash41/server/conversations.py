"""Bodies of the three conversation protocols to jobs of the engine.

The codec checks and renders what the body says; numbers come from the checked record.  Temperature and top_p are taken
as asked, unless the server was told to clamp them as the hosted service does.

spec: chat.md sections 2 to 5 and 9.
"""

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import deepseek_recipe as recipe

from flash41.chat.conversation import Conversation, Prompt
from flash41.chat.images import Picture
from flash41.chat.protocols import Protocol
from flash41.engine.prompt_images import num_widened
from flash41.engine.request import SamplingParams
from flash41.errors import RequestError
from flash41.server.api_errors import ApiError, refused
from flash41.server.local_images import disguised, without_pixels
from flash41.server.schemas import LARGEST_SEED, ChatBody, ResponsesBody, SamplingBody
from flash41.server.service import ConversationWish, Job, ModelFacts, Service
from flash41.server.settings import ServerSettings

PENALTIES = ("repetition_penalty", "presence_penalty", "frequency_penalty")
SAMPLING = ("temperature", "top_p", "top_k", "min_p", *PENALTIES)
OURS = {"n", "max_completion_tokens", "logit_bias", "seed", "top_k", "min_p", *PENALTIES}
"""Fields that this server reads itself; the codec would refuse or ignore them."""

ConstraintFor = Callable[[Conversation], object | None]
"""What restricts the answer to a conversation: a schema, a required call, or nothing.  Raises RequestError.

The engine makes it again for every answer; here it is made so that what cannot be enforced is refused at once.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A conversation to be answered."""

    conversation: Conversation
    num_prompt_tokens: int
    """Positions of the prompt, those of its pictures included."""
    jobs: tuple[Job, ...]
    """One per choice."""
    stream: bool
    includes_usage: bool
    """Whether every chunk of a Chat Completions stream has a usage field."""

    @property
    def seed(self) -> int:
        """The seed in effect, of the first choice."""
        return self.jobs[0].seed


class ConversationReader:
    """Turns bodies into calls."""

    def __init__(self, service: Service, settings: ServerSettings, constraint_for: ConstraintFor) -> None:
        self._service = service
        self._settings = settings
        self._constraint_for = constraint_for

    def begin(self, protocol: Protocol, body: Mapping[str, Any], record: SamplingBody) -> tuple[Conversation, Prompt]:
        """The conversation of a body that is to be answered, and its prompt; raises ApiError."""
        check_model(record.model, self._service.facts)
        _check_stateless(record)
        return self.render(protocol, body)

    def call(
        self,
        protocol: Protocol,
        body: Mapping[str, Any],
        rendered: tuple[Conversation, Prompt],
        pictures: Sequence[Picture],
        record: SamplingBody,
        salt: bytes = b"",
    ) -> Call:
        """The call of a rendered body, its pictures and its record; raises ApiError."""
        conversation, prompt = rendered
        num_prompt_tokens = num_widened(prompt.ids, pictures)
        params = self._params(conversation, num_prompt_tokens, record)
        wish = self._wish(conversation, protocol, body)
        seed = secrets.randbits(63) if record.seed is None else record.seed
        count = (record.n or 1) if isinstance(record, ChatBody) else 1
        jobs = tuple(
            Job(
                prompt_ids=prompt.ids,
                pictures=tuple(pictures),
                params=params,
                seed=(seed + k) & LARGEST_SEED,
                conversation=wish,
                salt=salt,
            )
            for k in range(count)
        )
        options = record.stream_options or {} if isinstance(record, ChatBody) else {}
        return Call(
            conversation=conversation,
            num_prompt_tokens=num_prompt_tokens,
            jobs=jobs,
            stream=bool(record.stream),
            includes_usage=options.get("include_usage") is True,
        )

    def render(self, protocol: Protocol, body: Mapping[str, Any]) -> tuple[Conversation, Prompt]:
        """The conversation of a body and its prompt, with one placeholder for each picture; raises ApiError."""
        codec, default = self._service.codec, self._settings.thinks_by_default
        try:
            conversation = codec.convert(self._given(protocol, body), protocol=protocol, thinking_by_default=default)
            rendering = codec.render(conversation)
            check_size(rendering.text, self._service)
            prompt = codec.encode(conversation, rendering)
        except RequestError as error:
            raise refused(error) from error
        return conversation, prompt

    def _params(self, conversation: Conversation, num_prompt_tokens: int, record: SamplingBody) -> SamplingParams:
        options, facts = conversation.request.inference_options, self._service.facts
        try:
            max_tokens = conversation.request.resolve_max_tokens(num_prompt_tokens, facts.max_model_len)
        except recipe.ConversionError as error:
            raise refused_conversion(error) from error
        check_room(num_prompt_tokens, facts)
        logprobs = (options.top_logprobs or 0) if options.logprobs else None
        params = sampling(record, facts, max_tokens, logprobs)
        if not self._settings.hosted_sampling:
            return params
        temperature, top_p = options.temperature, options.top_p
        return replace(
            params, temperature=1.0 if temperature is None else temperature, top_p=1.0 if top_p is None else top_p
        )

    def _wish(self, conversation: Conversation, protocol: Protocol, body: Mapping[str, Any]) -> ConversationWish | None:
        """What the engine must know of a conversation: nothing, where no stop string and no format is asked for."""
        try:
            is_held = self._constraint_for(conversation) is not None
        except RequestError as error:
            raise refused(error) from error
        if not is_held and not conversation.parsing_options.stop_sequences:
            return None
        given = without_pixels(self._given(protocol, body))
        return ConversationWish(protocol=protocol, body=given, thinks_by_default=self._settings.thinks_by_default)

    def _given(self, protocol: Protocol, body: Mapping[str, Any]) -> dict[str, Any]:
        """A body as the codec takes it."""
        given = {key: value for key, value in body.items() if value is not None and key not in OURS}
        if self._settings.image_root is not None:
            given = disguised(given)
        if protocol is Protocol.CHAT and body.get("max_completion_tokens") is not None:
            given.setdefault("max_tokens", body["max_completion_tokens"])
        return given


def refused_conversion(error: recipe.ConversionError) -> ApiError:
    """The error of a complaint by the codec itself."""
    wrapped = RequestError(str(error))
    wrapped.__cause__ = error
    return refused(wrapped)


def check_room(num_prompt_tokens: int, facts: ModelFacts) -> None:
    """Raises ApiError for a prompt that leaves no room for an answer."""
    if num_prompt_tokens >= facts.max_model_len:
        limit = facts.max_model_len
        message = f"the prompt has {num_prompt_tokens} tokens; prompt and answer together may have {limit}"
        raise ApiError(400, message, code="context_length_exceeded")


def check_size(text: str, service: Service) -> None:
    """Raises ApiError for a text that cannot fit whatever its tokens are: making them may take minutes."""
    num_bytes, longest = len(text.encode("utf-8", "surrogatepass")), service.codec.tokenizer.longest_token_bytes
    limit = service.facts.max_model_len
    if num_bytes > limit * longest:
        message = f"the prompt has more than {num_bytes // longest} tokens; prompt and answer together may have {limit}"
        raise ApiError(400, message, code="context_length_exceeded")


def sampling(record: SamplingBody, facts: ModelFacts, max_tokens: int, logprobs: int | None) -> SamplingParams:
    """How tokens are chosen: as asked, and the engine's defaults for the rest."""
    asked = {name: value for name in SAMPLING if (value := getattr(record, name)) is not None}
    return SamplingParams(max_tokens=max_tokens, logprobs=logprobs, logit_bias=_biases(record, facts), **asked)


def _biases(record: SamplingBody, facts: ModelFacts) -> dict[int, float]:
    """Biases by token id; JSON can only spell the ids as texts."""
    found = {}
    for key, value in (record.logit_bias or {}).items():
        if not (key.isascii() and key.isdigit() and len(key) < 10 and int(key) < facts.vocab_size):
            raise ApiError(400, f"logit_bias: keys must be token ids below {facts.vocab_size}", param="logit_bias")
        found[int(key)] = value
    return found


def check_model(name: str | None, facts: ModelFacts) -> None:
    """Raises ApiError for a model that is not served; none named is the one there is."""
    if name is not None and name.lower() not in {known.lower() for known in facts.names}:
        message = f"this model is not served here; /v1/models lists {', '.join(facts.names)}"
        raise ApiError(404, message, code="model_not_found", param="model")


def _check_stateless(record: SamplingBody) -> None:
    if not isinstance(record, ResponsesBody):
        return
    for field in ("previous_response_id", "conversation"):
        if getattr(record, field) is not None:
            message = f"{field} is not supported: this server keeps nothing between requests; send the whole input"
            raise ApiError(400, message, param=field)
    if record.background not in (None, False):
        raise ApiError(400, "background is not supported: answers are computed while the client waits")
