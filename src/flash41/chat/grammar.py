"""Grammars to masks, by the library `llguidance`, which comes with the extra `grammar`.

A grammar is a text in the library's Lark dialect; JSON Schemas stand in it as `%json {...}`, control tokens as
`<[id]>`.  A `Matcher` follows one text through a grammar: which tokens may come next, and what came.

The library is handed this vocabulary with every control token marked as one, whatever the tokenizer's own file flags:
so no control token is text, and none is allowed but where a grammar names its id.
"""

import json
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from flash41.chat.spelling import Mask, Spellings
from flash41.chat.tokenizer import Tokenizer
from flash41.errors import RequestError, complaint

try:
    import llguidance

    IS_INSTALLED = True
except ImportError:  # the extra is absent; only a constrained request needs it
    IS_INSTALLED = False

PLACE = re.compile(r"^at \d+\(\d+\): |^ +\d+ \| .*$|^ +\^$", re.MULTILINE)
LARGEST_MESSAGE = 300
REMEDY = "pip install 'flash41[grammar]'"
LARGEST_GRAMMAR = 200_000
"""Symbols of one grammar."""
LARGEST_STEP = 20_000
"""Parser items of one step; a few milliseconds."""
SPACES = r"[ \n\r\t]{1,40}"
"""What may stand between the tokens of a free-standing JSON text: enough for an indented line, not without end."""


class Grammars:
    """Makes matchers for one vocabulary.  Raises RequestError naming the remedy when the library is not installed."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, eos_token_id: int) -> None:
        if not IS_INSTALLED:
            thing = "response_format, tool_choice or strict tools"
            raise RequestError(complaint(thing, "a grammar", "the extra `grammar` to be installed", REMEDY))
        self.spellings = Spellings(tokenizer)
        self.vocab_size = vocab_size
        self.eos_token_id = eos_token_id
        words = llguidance.TokenizerWrapper(_Words(tokenizer, self.spellings, eos_token_id))
        self._words = llguidance.LLTokenizer(words, n_vocab=vocab_size)
        self._limits = llguidance.LLParserLimits(
            max_grammar_size=LARGEST_GRAMMAR, step_max_items=LARGEST_STEP, verbose_errors=False
        )

    def matcher(self, grammar: str, thing: str) -> "Matcher":
        """A matcher at the start of a grammar; raises RequestError if no text fits or the grammar is too large."""
        followed = llguidance.LLMatcher(self._words, grammar, log_level=0, limits=self._limits)
        matcher = Matcher(followed, self.vocab_size, self.eos_token_id)
        matcher.mask()  # a grammar without any text shows only here
        if matcher.failure is not None:
            raise RequestError(complaint(thing, matcher.failure, "a grammar that some text of bounded effort fits"))
        return matcher

    def check_json(self, schema: Any, thing: str) -> None:
        """Raises RequestError naming what the library cannot enforce in a JSON Schema."""
        grammar = llguidance.LLMatcher.grammar_from_json_schema(_as_object(schema), overrides={"lenient": False})
        fault = llguidance.LLMatcher.validate_grammar(grammar, None, limits=self._limits)
        if fault:
            raise RequestError(complaint(thing, _one_line(fault), "a JSON Schema of supported keywords"))

    def check_pattern(self, pattern: str, thing: str) -> None:
        """Raises RequestError if a regular expression, as in `regex_rule`, cannot be enforced."""
        fault = llguidance.LLMatcher.validate_grammar(f"start: X\nX: {regex_rule(pattern)}", None, limits=self._limits)
        if fault:
            raise RequestError(complaint(thing, _one_line(fault), "a regular expression without look-around"))


def json_rule(schema: Any, *, compact: bool = False) -> str:
    """The text of a JSON value; `compact` writes it as conversations do: one blank behind each comma and colon."""
    style: dict[str, Any] = {"whitespace_pattern": SPACES}
    if compact:
        style = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
    return f"%json {json.dumps({**_as_object(schema), 'x-guidance': style}, ensure_ascii=False)}"


def regex_rule(pattern: str) -> str:
    """A terminal of a regular expression with the character classes of JSON Schema; anchors are not known here."""
    return f"/{llguidance.regex_to_lark(pattern, 'dw')}/"


def literal(text: str) -> str:
    """A terminal of exactly this text."""
    return json.dumps(text, ensure_ascii=False)


class Matcher:
    """One text within one grammar."""

    def __init__(self, followed: "llguidance.LLMatcher", vocab_size: int, eos_token_id: int) -> None:
        self._followed = followed
        self._vocab_size = vocab_size
        self._eos_token_id = eos_token_id
        self.failure: str | None = None
        """Why the text cannot go on, if it cannot."""

    def mask(self) -> Mask:
        """Bool [vocab]: tokens that may come next, EOS where the text may end; nothing once it failed."""
        if self.failure is None:
            bits = np.frombuffer(self._followed.compute_bitmask(), np.uint8)
            self._note()
        if self.failure is not None:
            return np.zeros(self._vocab_size, np.bool_)
        return np.unpackbits(bits, count=self._vocab_size, bitorder="little").view(np.bool_)

    def push(self, token_id: int) -> None:
        """Takes the next token."""
        if token_id != self._eos_token_id and self.failure is None:
            self._followed.consume_token(token_id)
            self._note()

    def _note(self) -> None:
        if self._followed.is_error():
            self.failure = _one_line(self._followed.get_error())


class _Words:
    """A vocabulary as the library asks for one."""

    def __init__(self, tokenizer: Tokenizer, spellings: Spellings, eos_token_id: int) -> None:
        self._tokenizer = tokenizer
        self.eos_token_id = eos_token_id
        self.bos_token_id: int | None = None
        self.tokens: Sequence[bytes] = spellings.of_token
        self.special_token_ids = sorted(spellings.control_ids | {eos_token_id})

    def __call__(self, text: bytes) -> list[int]:
        return self._tokenizer.encode(text.decode("utf-8", "replace"))


def _as_object(schema: Any) -> dict[str, Any]:
    """A schema that is true or false in the form of an object."""
    return schema if isinstance(schema, dict) else {"allOf": [schema]}


def _one_line(message: str) -> str:
    """A message of the library in one line, without places in a grammar that no user wrote."""
    kept = PLACE.sub("", message.replace("<non-verbose/>", ""))
    return " ".join(kept.split())[:LARGEST_MESSAGE]
