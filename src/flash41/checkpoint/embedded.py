"""Configurations and tokenizers that the package ships.

data/default   those of the embedded default, whose weights lie beside them (`default.py`)
data/tiny      widths of the small random checkpoints that `flash41 make-tiny` writes; they have no weights
"""

import json
from importlib.resources import files

from flash41.config.architecture import ModelConfig
from flash41.config.huggingface import config_from_dict

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")


def default_config() -> ModelConfig:
    """Configuration of the embedded default."""
    return _config("default")


def tiny_config() -> ModelConfig:
    """Configuration of a small random checkpoint."""
    return _config("tiny")


def tiny_tokenizer_files() -> dict[str, bytes]:
    """Tokenizer of a small random checkpoint, by file name."""
    return {name: _data("tiny", name) for name in TOKENIZER_FILES}


def _config(folder: str) -> ModelConfig:
    return config_from_dict(json.loads(_data(folder, "config.json")))


def _data(folder: str, name: str) -> bytes:
    return (files("flash41.checkpoint") / "data" / folder / name).read_bytes()
