"""The token map: tokens that read alike share one compressed id.

A checkpoint does not carry the map; it is computed from the tokenizer, and the number of its classes is checked against
the config.  A wrong map crashes nothing, it only re-hashes the whole table, so a mismatch stops the start.

    " the", " The", "The", "the", " THE", "THE"   -> one class (237 in the release)
    " ", runs of tab and newline                  -> one class (174), kept apart from the empty text
    part of a UTF-8 character                     -> a class named by its raw vocabulary string

Release: 129,280 ids fall into 99,092 classes.  Knows nothing of hashes or tables.  spec: engram.md section 1.
"""

import hashlib
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from flash41.config.architecture import ModelConfig
from flash41.engram.hashing import DEAD
from flash41.errors import CheckpointError, ConfigError, RequestError, complaint

REPLACEMENT = "\ufffd"
"""What a lone part of a UTF-8 character decodes to."""

LONE_SPACE = "\ue000"
"""Stands in for a text that is exactly one space while the ends are stripped."""

WHITE_SPACE = (
    "\u0009\u000a\u000b\u000c\u000d\u0020\u0085\u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008"
    "\u2009\u200a\u2028\u2029\u202f\u205f\u3000"
)
"""Unicode property White_Space; `str.strip` without arguments would also remove U+001C to U+001F."""

MARKS = frozenset({"Mn", "Mc", "Me"})
"""Categories of combining marks; all three are dropped."""

BLANK_RUN = re.compile("[ \t\r\n]+")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenMap:
    """Token id -> compressed id."""

    classes: npt.NDArray[np.int32]
    """[vocab]: compressed id of each token id, dense, in order of first appearance."""
    pad_token_id: int
    """Token that stands for missing history."""

    @classmethod
    def from_tokenizer(cls, tokenizer_json: Path, config: ModelConfig) -> "TokenMap":
        """The map of a tokenizer, its number of classes checked (config rule N15).

        ConfigError on another number of classes or a pad id outside the vocabulary; CheckpointError if the file
        cannot be read.
        """
        pad_token_id, expected = config.engram.pad_token_id, config.engram.compressed_vocab_size
        if not 0 <= pad_token_id < config.vocab_size:
            raise ConfigError(complaint("engram_pad_token_id", pad_token_id, f"an id in 0..{config.vocab_size - 1}"))
        built = cls(classes=token_map(tokenizer_json, config.vocab_size), pad_token_id=pad_token_id)
        if built.num_classes != expected:
            raise ConfigError(
                f"engram_compressed_vocab_size: got {built.num_classes} classes from the tokenizer, "
                f"expected {expected} (a wrong map re-hashes the table silently)"
            )
        return built

    @property
    def pad(self) -> int:
        """Compressed id that stands for missing history."""
        return int(self.classes[self.pad_token_id])

    @property
    def num_classes(self) -> int:
        """Number of compressed ids."""
        return int(self.classes.max()) + 1

    def compress(
        self, ids: Sequence[int] | npt.NDArray[np.integer], image_mask: npt.NDArray[np.bool_] | None = None
    ) -> npt.NDArray[np.int64]:
        """Compressed ids [T], DEAD where the mask says image position; RequestError for an id outside the map."""
        tokens = np.asarray(ids, dtype=np.int64)
        vocab_size = len(self.classes)
        wrong = tokens[(tokens < 0) | (tokens >= vocab_size)]
        if wrong.size:
            got = sorted({int(token) for token in wrong})
            raise RequestError(complaint("token ids", got, f"ids in 0..{vocab_size - 1} (vocab_size {vocab_size})"))
        compressed = self.classes[tokens].astype(np.int64)
        if image_mask is not None:
            compressed[image_mask] = DEAD
        return compressed


def token_map(tokenizer_json: Path, vocab_size: int) -> npt.NDArray[np.int32]:
    """int32 [vocab_size]: the dense class of each id, numbered by first appearance of its key.

    An id without a token decodes to the empty text, so all such ids share one class.  CheckpointError if the file is
    missing or no tokenizer.
    """
    tokenizer = _tokenizer(tokenizer_json)
    classes: dict[str, int] = {}
    num_ids = min(vocab_size, 1 + max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1))
    found = np.empty(vocab_size, dtype=np.int32)
    for token_id in range(num_ids):
        text = tokenizer.decode([token_id], skip_special_tokens=False)
        found[token_id] = classes.setdefault(token_key(text, tokenizer.id_to_token(token_id)), len(classes))
    if num_ids < vocab_size:
        found[num_ids:] = classes.setdefault(token_key("", None), len(classes))
    return found


def token_key(text: str, raw: str | None) -> str:
    """Tokens with the same key share a class; `raw` is the vocabulary string of the token, None if it has none.

    Text and raw strings are keys of one space: the token of U+00B7 does meet the lone byte 0xB7, whose raw string
    looks the same.
    """
    if REPLACEMENT in text and raw is not None:
        return raw
    return normalized(text) or text


def normalized(text: str) -> str:
    """Text without compatibility forms, marks, case, and white space at its ends; possibly empty."""
    # ASCII is its own compatibility form and has no marks; it is most of a vocabulary.
    text = text.lower() if text.isascii() else _folded(text)
    text = BLANK_RUN.sub(" ", text)
    text = LONE_SPACE if text == " " else text
    return text.strip(WHITE_SPACE).replace(LONE_SPACE, " ")


def _folded(text: str) -> str:
    decomposed = unicodedata.normalize("NFD", unicodedata.normalize("NFKC", text))
    # Character by character: lowering a whole word would turn a final capital sigma into its word-end form.
    return "".join(char.lower() for char in decomposed if unicodedata.category(char) not in MARKS)


def digest(classes: npt.NDArray[np.int32]) -> str:
    """SHA-256 of the map as little-endian int32, in hexadecimal."""
    return hashlib.sha256(classes.astype("<i4").tobytes()).hexdigest()


def _tokenizer(tokenizer_json: Path) -> Tokenizer:
    try:
        if tokenizer_json.exists() and not tokenizer_json.is_file():  # a pipe, for one, would never end
            raise CheckpointError(complaint(str(tokenizer_json), "no regular file", "a readable tokenizer file"))
        return Tokenizer.from_buffer(tokenizer_json.read_bytes())
    except OSError as error:
        raise CheckpointError(complaint(str(tokenizer_json), error.strerror, "a readable tokenizer file")) from error
    except ValueError as error:
        raise CheckpointError(complaint(str(tokenizer_json), str(error), "a tokenizer.json")) from error
