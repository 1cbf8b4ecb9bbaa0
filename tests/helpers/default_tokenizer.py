"""Where the tokenizer of the embedded checkpoint lies in the source tree."""

from pathlib import Path

DEFAULT_TOKENIZER = Path(__file__).resolve().parents[2] / "src" / "flash41" / "checkpoint" / "data" / "default"
DEFAULT_IMAGE_ID = 1015
