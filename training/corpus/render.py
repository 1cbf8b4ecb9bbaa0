"""A sample as token ids, rendered by the product's own codec, with a mark on every token that is an answer.

    BOS ... <User>question<Assistant></think>answer EOS<User>question<Assistant></think>answer EOS
                                             ^^^^^^^^^^                                 ^^^^^^^^^^   marked

The answer is spelled here and nowhere else: reasoning, `</think>`, content, calls, EOS, as the codec renders them in a
history (spec: chat.md sections 2 and 4).  Pictures are widened to their spans, as the engine widens them.
"""

import json
from dataclasses import dataclass
from typing import Any

from flash41.chat.conversation import ChatCodec, Message, ToolCall
from flash41.chat.image_plan import ImageSizes
from flash41.chat.images import Picture, from_rgb
from flash41.chat.parts import STAND_IN, text_of
from flash41.config.architecture import ModelConfig
from flash41.engine.prompt_images import image_sizes, widen
from training.corpus.sample import IMAGE, Sample

DSML, THINK_END, ASSISTANT = "｜DSML｜", "</think>", "<｜Assistant｜>"


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A rendered sample."""

    family: str
    ids: tuple[int, ...]
    """Prompt and answer, EOS included; a picture's placeholder as often as its span is long."""
    marks: tuple[bool, ...]
    """Whether a token belongs to an answer."""
    num_prompt: int
    """Tokens before the last answer."""
    asked: tuple[int, ...]
    """The prompt as a caller gives it, with one placeholder for each picture."""
    pictures: tuple[Picture, ...]
    """In the order of their spans."""
    late: tuple[bool, ...]
    """Tokens of `Sample.late`, one flag per id."""
    is_misrouted: bool
    """As in the sample."""
    is_tableless: bool
    """As in the sample."""

    @property
    def answer(self) -> tuple[int, ...]:
        """Ids of the last answer."""
        return self.ids[self.num_prompt :]


class Renderer:
    """Renders samples for one tokenizer and one configuration."""

    def __init__(self, codec: ChatCodec, config: ModelConfig) -> None:
        self.codec = codec
        self._eos, self._image = config.tokens.eos, config.tokens.image
        self._sizes: ImageSizes = image_sizes(config.vision)
        self._end = self._control(THINK_END)
        self._assistant = self._control(ASSISTANT)

    def example(self, sample: Sample) -> Example:
        """Ids and marks of a sample."""
        conversation = self.codec.convert(body(sample))
        pictures = tuple(from_rgb(image, self._sizes) for image in sample.images)
        asked = self.codec.encode(conversation).ids
        prompt = widen(asked, pictures, self._image)[0]
        answer = self._answer(sample)
        marks = (*self._history_marks(prompt), *[True] * len(answer))
        ids = (*prompt, *answer)
        return Example(
            family=sample.family,
            ids=ids,
            marks=marks,
            num_prompt=len(prompt),
            asked=asked,
            pictures=pictures,
            late=self._late(ids, sample.late),
            is_misrouted=sample.is_misrouted,
            is_tableless=sample.is_tableless,
        )

    def _late(self, ids: tuple[int, ...], words: tuple[str, ...]) -> tuple[bool, ...]:
        if not words:
            return (False,) * len(ids)
        spelled = [self._spelled(f" {word}") for word in words]
        assert all(len(one) == 1 for one in spelled), "a word of which rows are hidden is one token"
        wanted, first_turn = {one[0] for one in spelled}, ids.index(self._assistant)
        return tuple(place < first_turn and token in wanted for place, token in enumerate(ids))

    def _answer(self, sample: Sample) -> list[int]:
        ids = [*self._spelled(sample.reasoning), self._end] if sample.reasoning is not None else []
        # The codec encodes what lies between control tokens as one text.
        text = sample.answer
        if sample.calls:
            text += "\n\n" + calls_text(sample.calls)
        return [*ids, *self._spelled(text), self._eos]

    def _spelled(self, text: str) -> list[int]:
        """Ids of trusted text in which only the marker of calls is a control token."""
        ids: list[int] = []
        for number, part in enumerate(text.split(DSML)):
            ids += [self._control(DSML)] if number else []
            ids += self.codec.tokenizer.encode(part) if part else []
        return ids

    def _history_marks(self, prompt: tuple[int, ...]) -> list[bool]:
        """Earlier answers: what follows a header up to EOS."""
        marks, inside = [], False
        for place, token in enumerate(prompt):
            marks.append(inside)
            if token == self._eos:
                inside = False
            elif place and prompt[place - 1] == self._assistant:
                inside = True
        if inside:  # the header of the answer to come
            last = len(prompt) - 1
            while last >= 0 and marks[last]:
                marks[last] = False
                last -= 1
        return marks

    def _control(self, spelling: str) -> int:
        token_id = self.codec.tokenizer.id_of(spelling)
        assert token_id is not None, f"the codec was built without {spelling!r}"
        return token_id


def calls_text(calls: tuple[ToolCall, ...]) -> str:
    """Calls as an answer writes them."""
    lines = [f"<{DSML} calls>"]
    for call in calls:
        lines.append(f'<{DSML} invoke name="{call.name}">')
        for name, value in json.loads(call.arguments).items():
            is_text = isinstance(value, str)
            written = value if is_text else json.dumps(value, ensure_ascii=False)
            kind = "true" if is_text else "false"
            lines.append(f'<{DSML} parameter name="{name}" string="{kind}">{written}</{DSML} parameter>')
        lines.append(f"</{DSML} invoke>")
    return "\n".join([*lines, f"</{DSML} calls>"])


def body(sample: Sample) -> dict[str, Any]:
    """The sample's prompt as a Chat Completions body."""
    thinking = {"type": "disabled" if sample.reasoning is None else "enabled"}
    wire: dict[str, Any] = {"messages": [_wire(message) for message in sample.messages], "thinking": thinking}
    return {**wire, "tools": list(sample.tools)} if sample.tools else wire


def _wire(message: Message) -> dict[str, Any]:
    text = text_of(message.content)
    wire: dict[str, Any] = {"role": message.role, "content": text}
    if IMAGE in text:
        pictures = [{"type": "image_url", "image_url": {"url": STAND_IN}}] * text.count(IMAGE)
        wire["content"] = [*pictures, {"type": "text", "text": text.replace(IMAGE, "")}]
    if message.reasoning is not None:
        wire["reasoning_content"] = message.reasoning
    if message.tool_calls:
        wire["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
    if message.tool_call_id is not None:
        wire["tool_call_id"] = message.tool_call_id
    return wire
