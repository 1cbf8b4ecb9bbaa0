"""Where the tokenizer of the embedded checkpoint lies in the source tree."""

from pathlib import Path

DEFAULT_TOKENIZER = Path(__file__).resolve().parents[2] / "src" / "flash41" / "tools" / "data" / "default-tokenizer"
DEFAULT_IMAGE_ID = 1015
