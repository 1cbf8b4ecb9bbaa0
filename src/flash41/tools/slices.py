"""Slices of a model as checkpoints: true widths and formats, random weights, small enough for any machine to run.

A slice has the tokenizer beside its configuration.  Where there is none, as for the release, it has that of small
random checkpoints with a token ``<id1024>``, ``<id1025>`` ... for every further id: texts are read as with those, and
every id that the model may choose can be shown.
"""

import json
from dataclasses import replace
from pathlib import Path

from flash41.checkpoint.embedded import tiny_config, tiny_tokenizer_files
from flash41.checkpoint.schema import schema
from flash41.checkpoint.streaming import Progress, write_random
from flash41.config.architecture import ModelConfig
from flash41.config.slices import SliceWish, sliced
from flash41.engram.vocabulary import TokenMap
from flash41.errors import ConfigError, complaint
from flash41.tools.tiny import TOKENIZER_FILE


def make_slice(
    directory: Path,
    config: ModelConfig,
    wish: SliceWish,
    seed: int,
    tokenizer: Path | None = None,
    progress: Progress | None = None,
    force: bool = False,
) -> ModelConfig:
    """Writes a slice of a model and returns its configuration.

    `tokenizer` names the tokenizer.json that belongs to `config`.  Everything is refused before a byte is written:
    ConfigError for sizes the model has no room for, CapacityError for a disk that has none.
    """
    model = sliced(config, wish)
    if tokenizer is None:
        model = _with_tiny_tokenizer(model)
        files = padded_tokenizer(model.vocab_size)
    else:
        TokenMap.from_tokenizer(tokenizer, model)
        files = {TOKENIZER_FILE: tokenizer.read_bytes()}
    write_random(directory, model, seed, tokenizer_files=files, force=force, progress=progress)
    return model


def num_bytes(config: ModelConfig) -> int:
    """Bytes of all tensors."""
    return sum(spec.num_bytes for spec in schema(config).values())


def padded_tokenizer(vocab_size: int) -> dict[str, bytes]:
    """Files of the tokenizer of small random checkpoints with a token for every id of a larger vocabulary."""
    files = tiny_tokenizer_files()
    document = json.loads(files[TOKENIZER_FILE])
    vocabulary: dict[str, int] = document["model"]["vocab"]
    # A reader gives an added token the next free id unless the vocabulary names it.
    vocabulary |= {token["content"]: token["id"] for token in document["added_tokens"]}
    vocabulary |= {f"<id{token_id}>": token_id for token_id in range(tiny_config().vocab_size, vocab_size)}
    return {**files, TOKENIZER_FILE: json.dumps(document, ensure_ascii=False).encode()}


def _with_tiny_tokenizer(config: ModelConfig) -> ModelConfig:
    """The same model with the special ids and the token classes of the padded tokenizer."""
    default = tiny_config()
    num_more = config.vocab_size - default.vocab_size
    if num_more < 0:
        expected = f"at least the {default.vocab_size} ids of the tokenizer that a model without one is given"
        raise ConfigError(complaint("vocab_size", config.vocab_size, expected))
    return replace(
        config,
        tokens=default.tokens,
        engram=replace(
            config.engram,
            pad_token_id=default.engram.pad_token_id,
            compressed_vocab_size=default.engram.compressed_vocab_size + num_more,
        ),
        dspark=replace(config.dspark, noise_token_id=default.dspark.noise_token_id),
    )
