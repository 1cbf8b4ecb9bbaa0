"""The ids of a chat answer as they come: pieces are kept, and a stop string in the content ends the answer.

The official stream parser decides what is content, so a stop string in reasoning or in a call is text like any other.

spec: chat.md section 8.
"""

from dataclasses import dataclass

from flash41.chat.conversation import ChatCodec, Conversation, ToolCall
from flash41.chat.parsing import Delta, DeltaKind, EngineFinish


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedAnswer:
    """A finished answer of the assistant."""

    content: str
    reasoning: str
    tool_calls: tuple[ToolCall, ...]
    """Calls the model made; their arguments are as it wrote them, which need not be valid JSON."""
    finish_reason: str
    """stop, length or tool_calls."""
    num_reasoning_tokens: int
    """Ids before and with the one that ended the reasoning."""


class ChatWatcher:
    """Sees the ids of one chat answer and says when a stop string ended it."""

    def __init__(self, codec: ChatCodec, conversation: Conversation, eos_token_id: int | None) -> None:
        self._reasons = conversation.starts_in_reasoning
        self._end_of_reasoning = codec.tokenizer.id_of("</think>")
        self._parser = codec.parser(conversation)
        self._eos_token_id = eos_token_id
        self._deltas: list[Delta] = []
        self._num_reasoning_tokens = 0

    def push(self, token_id: int) -> bool:
        """Takes the next id; true when a stop string has ended the content.  EOS, if there is one, is no text."""
        if token_id == self._eos_token_id:
            return False
        deltas = self._parser.push(token_id)
        self._deltas += deltas
        if self._reasons:
            self._num_reasoning_tokens += 1
            elsewhere = any(delta.kind is not DeltaKind.REASONING for delta in deltas)
            self._reasons = token_id != self._end_of_reasoning and not elsewhere
        return self._parser.stopped

    def finish(self, reason: EngineFinish) -> ParsedAnswer:
        """The whole answer, when the engine ended it for `reason`; a stop string's end stands."""
        self._deltas += self._parser.finish(reason)
        finish_reason = self._parser.finish_reason
        assert finish_reason is not None, "the parser was told why the answer ended"
        return ParsedAnswer(
            content=self._text(DeltaKind.CONTENT),
            reasoning=self._text(DeltaKind.REASONING),
            tool_calls=self._calls(),
            finish_reason=finish_reason,
            num_reasoning_tokens=self._num_reasoning_tokens,
        )

    def _text(self, kind: DeltaKind) -> str:
        return "".join(delta.text for delta in self._deltas if delta.kind is kind)

    def _calls(self) -> tuple[ToolCall, ...]:
        starts = [(delta.call_index, delta.call_start) for delta in self._deltas if delta.call_start is not None]
        return tuple(
            ToolCall(
                id=start.id,
                name=start.name,
                arguments="".join(
                    delta.text for delta in self._deltas if delta.kind is DeltaKind.CALL and delta.call_index == index
                ),
            )
            for index, start in starts
        )
