"""Conversations to prompts and completions to messages: five verbs around the official codec, `deepseek_recipe`.

    convert   a body of one of three protocols, or our own records, -> Conversation (checked, defaults filled)
    render    Conversation -> Rendering: the prompt's text and where its control tokens lie
    encode    Conversation -> Prompt: token ids
    parser    Conversation -> StreamParser: ids of the completion -> reasoning, content, tool calls
    reply     Conversation -> WireReply: ids of the completion -> chunks of the protocol the body came in

The codec's rules are the hosted service's.  Our own are an integer effort, quick instructions and a context, which
the codec refuses or reads over.  They are edits of its rendering, at places that only the renderer can have put there.

Encoding follows the injection rule: a control span becomes its one id, everything between is plain text in base ids, so
nothing that a user, a tool or a document writes can open or close a turn.

Knows nothing of models, images' pixels or requests in flight.  spec: chat.md sections 1 to 5 and 7.
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import deepseek_recipe as recipe

from flash41.chat.edits import Edits, edited, task_token
from flash41.chat.extras import split
from flash41.chat.parsing import StreamParser
from flash41.chat.parts import Content, wire_content
from flash41.chat.protocols import Counts, Identity, Protocol, WireReply, WireRequest, converted
from flash41.chat.tokenizer import Tokenizer
from flash41.errors import ConfigError, RequestError, complaint

Role = Literal["system", "user", "assistant", "tool", "latest_reminder"]
Effort = str | int
"""A level ("low" 50, "high" 75, "max" 100, and the codec's aliases) or the number itself, 1 to 100."""

MODEL_NAME = "DeepSeek-V4.1-Flash"
"""The codec looks prompts up by this name; which name a server offers is its own business."""

_PLACED_BY_RENDERER = (
    recipe.SpecialToken.Bos,
    recipe.SpecialToken.Eos,
    recipe.SpecialToken.System,
    recipe.SpecialToken.User,
    recipe.SpecialToken.Assistant,
    recipe.SpecialToken.ThinkingStart,
    recipe.SpecialToken.ThinkingEnd,
    recipe.SpecialToken.Dsml,
    recipe.SpecialToken.LatestReminder,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A call that an earlier assistant turn made."""

    id: str
    name: str
    arguments: str
    """A JSON object as text; anything else is rendered as one string."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message of a conversation."""

    role: Role
    content: Content
    """A text, or texts and pictures in the order in which they are read."""
    reasoning: str | None = None
    """What an assistant turn thought; kept in the prompt only when tools are declared."""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    """The call that a tool message answers."""
    prefix: bool = False
    """Whether this last assistant turn is to be continued instead of answered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """A checked conversation with everything that its prompt and its parser need."""

    request: recipe.ConversationRequest
    """The codec's record: messages, tools, parsing and inference options."""
    edits: Edits
    """What the prompt has otherwise than the codec renders it."""
    protocol: Protocol = Protocol.CHAT
    """How the body travelled, and its replies will."""
    wire: WireRequest | None = None
    """What returns in replies, where a body was converted."""
    parallel_tool_calls: bool
    """Whether an answer may hold several calls; the codec does not look at it."""

    @property
    def thinking(self) -> bool:
        """Whether the completion begins inside reasoning."""
        return self.request.conversation.thinking_mode

    @property
    def parsing_options(self) -> recipe.ParsingOptions:
        """How completions are read."""
        options = self.request.parsing_options
        if self.edits.is_answered_task:
            options.thinking_initial_stage = None
        return options

    @property
    def starts_in_reasoning(self) -> bool:
        """Whether the first token of a completion is reasoning."""
        stage = self.parsing_options.thinking_initial_stage
        return stage is not None and stage.starts_in_reasoning()


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendering:
    """A prompt before encoding."""

    text: str
    control_spans: tuple[tuple[int, int], ...]
    """Half-open character ranges of `text`, ascending: each is one control token that the renderer placed."""
    images: tuple[recipe.ImageSource, ...]
    """One source per image placeholder, in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """What the engine computes first."""

    ids: tuple[int, ...]
    text: str
    thinking: bool
    images: tuple[recipe.ImageSource, ...]
    """Each occupies one placeholder id; whoever runs the prompt widens it to the image's size or refuses."""


class ChatCodec:
    """The five verbs over one tokenizer."""

    def __init__(self, tokenizer: Tokenizer, image_token_id: int) -> None:
        self.tokenizer = tokenizer
        # The official files spell the placeholder differently and only its id is fixed, so the id leads.
        self._special_tokens = recipe.SpecialTokens(image=_placeholder(tokenizer, image_token_id))
        self._encoding = recipe.DeepseekV41Encoding().with_special_tokens(self._special_tokens)
        spellings = [self._special_tokens.token(token) for token in _PLACED_BY_RENDERER]
        missing = [spelling for spelling in spellings if tokenizer.id_of(spelling) is None]
        if missing:
            raise ConfigError(
                complaint("tokenizer", f"no token {', '.join(missing)}", "every control token of a prompt")
            )

    @classmethod
    def from_directory(cls, directory: Path, image_token_id: int) -> "ChatCodec":
        """The codec of a checkpoint; raises ConfigError naming every control token its tokenizer lacks."""
        return cls(Tokenizer.from_file(directory / "tokenizer.json"), image_token_id)

    def conversation(
        self,
        messages: Sequence[Message],
        *,
        thinking: bool = True,
        effort: Effort | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
        tool_choice: str | Mapping[str, Any] | None = None,
        parallel_tool_calls: bool | None = None,
        response_format: Mapping[str, Any] | None = None,
        stop: Sequence[str] = (),
    ) -> Conversation:
        """A conversation from our records; tools, choice and format as in Chat Completions.  Raises RequestError."""
        body: dict[str, Any] = {
            "messages": [_wire_message(message) for message in messages],
            "thinking": {"type": "enabled" if thinking else "disabled"},
        }
        optional = {
            "reasoning_effort": effort,
            "tools": [dict(tool) for tool in tools] or None,
            "tool_choice": tool_choice,
            "parallel_tool_calls": parallel_tool_calls,
            "response_format": response_format,
            "stop": list(stop) or None,
        }
        return self.convert(body | {key: value for key, value in optional.items() if value is not None})

    def convert(
        self, body: Mapping[str, Any], *, protocol: Protocol = Protocol.CHAT, thinking_by_default: bool = True
    ) -> Conversation:
        """A conversation from a body, whose `model` is not looked at.

        Raises RequestError with the hosted service's wording.
        """
        wire, extras = split({**body, "model": MODEL_NAME}, protocol)
        options = recipe.ConversionOptions().with_special_tokens(self._special_tokens)
        options = options.with_default_thinking_mode(thinking_by_default)
        try:
            found = converted(protocol, wire, options)
        except UnicodeEncodeError as error:
            got = error.object[error.start : error.end]
            raise RequestError(complaint("conversation text", got, "Unicode without lone surrogates")) from error
        except (recipe.ConversionError, ValueError, TypeError, OverflowError, RecursionError) as error:
            raise RequestError(str(error)) from error
        self._check_tasks(extras.edits)
        return Conversation(
            request=found.request,
            edits=extras.edits,
            parallel_tool_calls=extras.parallel_tool_calls,
            protocol=protocol,
            wire=found,
        )

    def render(self, conversation: Conversation) -> Rendering:
        """The prompt's text and its control spans; raises RequestError where a context leaves no prompt."""
        rendered = self._encoding.render_conversation(conversation.request.conversation)
        edits, thinking = conversation.edits, conversation.thinking
        text, spans = edited(rendered.prompt, rendered.special_ranges, edits, thinking=thinking)
        placeholder = self._special_tokens.token(recipe.SpecialToken.Image)
        num_images = sum(text[start:end] == placeholder for start, end in spans)
        images = rendered.image_sources[len(rendered.image_sources) - num_images :]
        return Rendering(text=text, control_spans=tuple(spans), images=tuple(images))

    def encode(self, conversation: Conversation, rendering: Rendering | None = None) -> Prompt:
        """The prompt's ids: control spans by their one id, what lies between as plain text.

        Whoever has looked at the rendering already gives it.
        """
        rendering = rendering or self.render(conversation)
        ids: list[int] = []
        end = 0
        for start, stop in rendering.control_spans:
            ids += self._plain(rendering.text[end:start])
            ids.append(self._control_id(rendering.text[start:stop]))
            end = stop
        ids += self._plain(rendering.text[end:])
        return Prompt(ids=tuple(ids), text=rendering.text, thinking=conversation.thinking, images=rendering.images)

    def parser(self, conversation: Conversation) -> StreamParser:
        """A parser for one completion of this conversation."""
        return StreamParser(conversation.request, conversation.parsing_options, self._special_tokens, self.tokenizer)

    def reply(
        self, conversation: Conversation, *, name: str, model: str, created: int, keeps: bool = False
    ) -> WireReply:
        """A reply called `name` in the conversation's protocol; `keeps` collects it as one body instead of events."""
        wire = conversation.wire or WireRequest(request=conversation.request)
        options, identity = conversation.parsing_options, Identity(name=name, model=model, created=created)
        options.special_tokens = self._special_tokens
        end = self.tokenizer.id_of(self._special_tokens.token(recipe.SpecialToken.ThinkingEnd))
        counts = Counts(conversation.protocol, end, reasons=conversation.starts_in_reasoning)
        return WireReply(
            conversation.protocol, wire, options, identity, counts, self._decoder, self.tokenizer, keeps=keeps
        )

    @functools.cached_property
    def _decoder(self) -> recipe.Tokenizer:
        """The tokenizer as the codec's own stream processor reads it."""
        return recipe.Tokenizer.from_str(self.tokenizer.document())

    def _check_tasks(self, edits: Edits) -> None:
        lacking = {task.name for task in edits.tasks if self.tokenizer.id_of(task_token(task.name)) is None}
        if lacking:
            raise RequestError(complaint("task", sorted(lacking), "those that this tokenizer has a token for"))

    def _plain(self, text: str) -> list[int]:
        return self.tokenizer.encode(text) if text else []

    def _control_id(self, spelling: str) -> int:
        token_id = self.tokenizer.id_of(spelling)
        assert token_id is not None, f"the renderer placed {spelling!r}, which was not checked at construction"
        return token_id


def _placeholder(tokenizer: Tokenizer, image_token_id: int) -> str:
    """Spelling of the image placeholder."""
    try:
        text = tokenizer.token_text(image_token_id)
    except RequestError as error:
        raise ConfigError(complaint("image_token_id", image_token_id, "a token of the tokenizer")) from error
    if tokenizer.id_of(text) != image_token_id:
        raise ConfigError(complaint("image_token_id", image_token_id, "a control token", f"it is the text {text!r}"))
    return text


def _wire_message(message: Message) -> dict[str, Any]:
    """A message as Chat Completions spells it."""
    wire: dict[str, Any] = {"role": message.role, "content": wire_content(message.content)}
    if message.reasoning is not None:
        wire["reasoning_content"] = message.reasoning
    if message.tool_calls:
        wire["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
    if message.tool_call_id is not None:
        wire["tool_call_id"] = message.tool_call_id
    if message.prefix:
        wire["prefix"] = True
    return wire
