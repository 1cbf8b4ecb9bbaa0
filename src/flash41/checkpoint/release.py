"""The configuration of the released model, DeepSeek-V4.1-Flash, shipped with the package.

Lets every tool that needs no weights speak about the release on a machine that has never seen it.
spec: config.md sections 1 to 3.
"""

from importlib.resources import files

from flash41.config.architecture import ModelConfig
from flash41.config.document import parse_document
from flash41.config.huggingface import config_from_dict

RELEASE_NAME = "DeepSeek-V4.1-Flash"
RELEASE_FILE = "release-config.json"


def release_config() -> ModelConfig:
    """Configuration of DeepSeek-V4.1-Flash, as its config.json states it."""
    text = (files("flash41.checkpoint") / "data" / RELEASE_FILE).read_text(encoding="utf-8")
    return config_from_dict(parse_document(text, RELEASE_FILE))
