"""Small random checkpoints in the true format, for tests, experiments and ports."""

from collections.abc import Callable
from pathlib import Path

from torch import Tensor

from flash41.checkpoint.embedded import tiny_config, tiny_tokenizer_files
from flash41.checkpoint.synthetic import synthetic_weights
from flash41.checkpoint.writer import write_checkpoint
from flash41.config.architecture import ModelConfig
from flash41.config.huggingface import read_config
from flash41.engram.vocabulary import TokenMap
from flash41.errors import ConfigError, combined, complaint

TOKENIZER_FILE = "tokenizer.json"

BYTES_PER_SHARD = 256 << 20
"""Largest shard a small checkpoint is cut into."""


def config_to_fill(path: Path | None) -> ModelConfig:
    """The configuration to fill: that of small random checkpoints, or the config.json at `path`."""
    return tiny_config() if path is None else read_config(path)


def tokenizer_beside(path: Path | None) -> Path | None:
    """The tokenizer.json in the folder of a configuration, if there is one."""
    if path is None:
        return None
    found = (path if path.is_dir() else path.parent) / TOKENIZER_FILE
    return found if found.is_file() else None


def make_tiny(
    directory: Path,
    config: ModelConfig,
    seed: int,
    tokenizer: Path | None = None,
    progress: Callable[[str], None] | None = None,
    force: bool = False,
) -> None:
    """Writes random weights for `config` with a tokenizer that fits it.

    `tokenizer` names a tokenizer.json; without one that of small random checkpoints is used.  Raises ConfigError before
    anything is made when the tokenizer's token map does not have the classes the configuration asks for (rule N15).
    """
    stored = synthetic_weights(config, seed)

    def weights(name: str) -> Tensor:
        if progress is not None:
            progress(name)
        return stored(name)

    write_checkpoint(
        directory,
        config,
        weights,
        max_shard_bytes=BYTES_PER_SHARD,
        tokenizer_files=_tokenizer_files(config, tokenizer),
        force=force,
    )


def _tokenizer_files(config: ModelConfig, tokenizer: Path | None) -> dict[str, bytes]:
    if tokenizer is None:
        _check_small_one_fits(config)
        return tiny_tokenizer_files()
    TokenMap.from_tokenizer(tokenizer, config)
    sidecar = tokenizer.with_name("tokenizer_config.json")
    extra = {sidecar.name: sidecar.read_bytes()} if sidecar.is_file() else {}
    return {TOKENIZER_FILE: tokenizer.read_bytes(), **extra}


def _check_small_one_fits(config: ModelConfig) -> None:
    own, default = _tokenizer_facts(config), _tokenizer_facts(tiny_config())
    remedy = "that of the small tokenizer of the package; name another tokenizer.json with --tokenizer"
    faults = [complaint(name, own[name], str(default[name]), remedy) for name in own if own[name] != default[name]]
    if faults:
        raise ConfigError(combined(faults))


def _tokenizer_facts(config: ModelConfig) -> dict[str, int]:
    """What a tokenizer must agree with."""
    tokens = config.tokens
    return {
        "vocab_size": config.vocab_size,
        "engram_compressed_vocab_size": config.engram.compressed_vocab_size,
        "bos_token_id": tokens.bos,
        "eos_token_id": tokens.eos,
        "pad_token_id": tokens.pad,
        "image_token_id": tokens.image,
    }
