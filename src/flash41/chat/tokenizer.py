"""Text to token ids and back.

A vocabulary has two layers.  The base layer is byte-level BPE: every byte has an id, so every text can be written.
Above it lie the control tokens (`<think>`, the turn headers, ...), which are text too when somebody types them.  Only a
prompt renderer may place a control token, so two verbs exist and the plain one is the safe one:

    encode("<think>")               -> base ids only: a user who types the marker gets the five letters and brackets
    encode_with_control("<think>")  -> [128821] in the release

Nothing is added at either end; whoever renders a prompt writes BOS.  Knows nothing of conversations.

spec: chat.md section 1 (injection rule).
"""

import codecs
import functools
from collections.abc import Iterable
from pathlib import Path

import tokenizers
from tokenizers import decoders

from flash41.errors import ConfigError, RequestError, complaint


class Tokenizer:
    """One `tokenizer.json`."""

    def __init__(self, full: tokenizers.Tokenizer) -> None:
        self._full = full
        # The same model without added tokens: the vocabulary is shared, not copied.
        self._base = tokenizers.Tokenizer(full.model)
        if full.normalizer is not None:
            self._base.normalizer = full.normalizer
        self._base.pre_tokenizer = full.pre_tokenizer
        self._bytes_of_id: dict[int, bytes] = {}  # asked for once per token of every answer
        added = full.get_added_tokens_decoder()
        self._control_ids = {token.content: token_id for token_id, token in added.items()}
        self._special_ids = frozenset(token_id for token_id, token in added.items() if token.special)

    @classmethod
    def from_file(cls, path: Path) -> "Tokenizer":
        """The tokenizer of a `tokenizer.json`; raises ConfigError if it is missing, broken or not byte-level."""
        if not path.is_file():
            raise ConfigError(complaint("tokenizer", str(path), "an existing tokenizer.json"))
        try:
            full = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises bare Exception for every fault of the file
            raise ConfigError(complaint("tokenizer", str(path), "a valid tokenizer.json", str(error))) from error
        if not isinstance(full.decoder, decoders.ByteLevel):
            raise ConfigError(complaint("tokenizer decoder", type(full.decoder).__name__, "ByteLevel", str(path)))
        return cls(full)

    @property
    def vocab_size(self) -> int:
        """Number of ids, control tokens included."""
        return self._full.get_vocab_size(with_added_tokens=True)

    def document(self) -> str:
        """The whole `tokenizer.json`, for another library to read."""
        return str(self._full.to_str())

    def encode(self, text: str) -> list[int]:
        """Ids of plain text: the spelling of a control token is ordinary text here."""
        return self._encode(self._base, text)

    def encode_with_control(self, text: str) -> list[int]:
        """Ids of trusted text: the spelling of a control token becomes its id."""
        return self._encode(self._full, text)

    @staticmethod
    def _encode(layer: tokenizers.Tokenizer, text: str) -> list[int]:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            got = text[error.start : error.end]
            raise RequestError(complaint("text", got, "Unicode without lone surrogates")) from error
        return list(layer.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: Iterable[int], skip_special: bool = False) -> str:
        """Text of ids; invalid UTF-8 becomes U+FFFD.

        `skip_special` leaves out tokens flagged special: BOS, EOS and a few more, not `</think>` or the headers.
        """
        decoder = self.incremental(skip_special)
        return "".join([*map(decoder.push, ids), decoder.flush()])

    def token_bytes(self, token_id: int) -> bytes:
        """What one id writes; raises RequestError for an id outside the vocabulary."""
        known = self._bytes_of_id.get(token_id)
        if known is None:
            known = self._bytes_of_id[token_id] = self._spelled(token_id)
        return known

    def _spelled(self, token_id: int) -> bytes:
        token = self._full.id_to_token(token_id) if 0 <= token_id < self.vocab_size else None
        if token is None:
            raise RequestError(complaint("token id", token_id, f"an id of this vocabulary, 0 to {self.vocab_size - 1}"))
        return _written(token)

    def all_token_bytes(self) -> list[bytes]:
        """What every id writes, in order of id: at once, as asking the library for each takes seconds."""
        by_id = {token_id: token for token, token_id in self._full.get_vocab(with_added_tokens=True).items()}
        return [_written(by_id[token_id]) if token_id in by_id else b"" for token_id in range(self.vocab_size)]

    @functools.cached_property
    def longest_token_bytes(self) -> int:
        """Bytes that one id writes at most: a text of more than n times as many has more than n ids."""
        return max(map(len, self.all_token_bytes()))

    def token_text(self, token_id: int) -> str:
        """Text of one id; the exact spelling for a control token, U+FFFD for parts of a character."""
        return self.token_bytes(token_id).decode("utf-8", "replace")

    def id_of(self, token: str) -> int | None:
        """Id of a control token by its spelling; None if there is no such control token."""
        return self._control_ids.get(token)

    @property
    def control_ids(self) -> frozenset[int]:
        """Ids of all control tokens."""
        return frozenset(self._control_ids.values())

    def is_special(self, token_id: int) -> bool:
        """Whether an id is left out by `skip_special`."""
        return token_id in self._special_ids

    def incremental(self, skip_special: bool = False) -> "IncrementalDecoder":
        """A decoder for ids that arrive one by one."""
        return IncrementalDecoder(self, skip_special)


class IncrementalDecoder:
    """Text of ids that arrive one by one; the pieces join to what `Tokenizer.decode` gives for all of them."""

    def __init__(self, tokenizer: Tokenizer, skip_special: bool = False) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._pending = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        """Text that is certain now: the first bytes of a character are held back until its last one."""
        written = self._tokenizer.token_bytes(token_id)
        skipped = self._skip_special and self._tokenizer.is_special(token_id)
        return "" if skipped else self._pending.decode(written)

    def flush(self) -> str:
        """U+FFFD for bytes still held back, else nothing; the decoder starts anew."""
        return self._pending.decode(b"", final=True)


def _written(token: str) -> bytes:
    """Bytes of a token as the library spells it."""
    table = _byte_of_character()
    if any(character not in table for character in token):
        return token.encode()  # a control token that byte-level spelling cannot produce
    return bytes(table[character] for character in token)


@functools.cache
def _byte_of_character() -> dict[str, int]:
    """The byte-level alphabet: visible Latin-1 characters stand for themselves, the other bytes for U+0100 onwards."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(0x100) if byte not in visible]
    table = {chr(byte): byte for byte in visible}
    table.update({chr(0x100 + number): byte for number, byte in enumerate(hidden)})
    return table
