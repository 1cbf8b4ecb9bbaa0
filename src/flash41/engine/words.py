"""What of an opened model deals in words: conversations rendered, answers read, and what ends or holds an answer.

The codec and the grammars' vocabulary are made when they are first needed: raw prompts need neither.
"""

from collections.abc import Sequence

from flash41.chat.constraints import AnswerConstraint, AnswerConstraints
from flash41.chat.conversation import ChatCodec, Conversation
from flash41.chat.stops import TextWatcher
from flash41.chat.tokenizer import Tokenizer
from flash41.chat.watching import ChatWatcher
from flash41.config.architecture import ModelConfig
from flash41.engine.request import SamplingParams
from flash41.errors import RequestError, complaint


class Words:
    """The tokenizer of a model, and what is made of it."""

    def __init__(self, tokenizer: Tokenizer, config: ModelConfig) -> None:
        self._tokenizer = tokenizer
        self._config = config
        self._codec: ChatCodec | None = None
        self._constraints: AnswerConstraints | None = None

    @property
    def codec(self) -> ChatCodec:
        """Renders conversations; raises ConfigError when the tokenizer lacks a control token."""
        if self._codec is None:
            self._codec = ChatCodec(self._tokenizer, self._config.tokens.image)
        return self._codec

    def text_watcher(self, params: SamplingParams, stop: Sequence[str]) -> TextWatcher:
        """Collects the raw text of one answer and ends it at the first of the checked stop strings."""
        return TextWatcher(self._tokenizer, stop, self._silent_eos(params))

    def chat_watcher(self, params: SamplingParams, conversation: Conversation) -> ChatWatcher:
        """Parses one answer to a conversation and ends it at the conversation's stop strings."""
        return ChatWatcher(self.codec, conversation, self._silent_eos(params))

    def constraint(self, params: SamplingParams, conversation: Conversation) -> AnswerConstraint | None:
        """Holds one answer to the conversation's response format and tools; None where nothing is asked of it.

        Raises RequestError for what cannot be enforced.
        """
        if self._constraints is None:
            self._constraints = AnswerConstraints(self.codec, self._config.vocab_size, self._config.tokens.eos)
        constraint = self._constraints.constraint(conversation)
        if constraint is not None and params.ignore_eos:
            thing = "ignore_eos with response_format, tool_choice or strict tools"
            raise RequestError(complaint(thing, True, "False", "such an answer ends with EOS"))
        return constraint

    def _silent_eos(self, params: SamplingParams) -> int | None:
        """EOS where it ends an answer and so is no text of it."""
        return None if params.ignore_eos else self._config.tokens.eos
