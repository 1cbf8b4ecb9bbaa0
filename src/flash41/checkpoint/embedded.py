"""Configuration and tokenizer of the embedded default, as the package ships them; its weights are made in `default`."""

import json
from importlib.resources import files

from flash41.config.architecture import ModelConfig
from flash41.config.huggingface import config_from_dict

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")


def default_config() -> ModelConfig:
    """Configuration of the embedded default."""
    return config_from_dict(json.loads(_data("config.json")))


def default_tokenizer_files() -> dict[str, bytes]:
    """Tokenizer of the embedded default, by file name."""
    return {name: _data(name) for name in TOKENIZER_FILES}


def _data(name: str) -> bytes:
    return (files("flash41.checkpoint") / "data" / "default" / name).read_bytes()
