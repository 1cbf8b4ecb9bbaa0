"""Where the tokenizer of small random checkpoints lies in the source tree."""

from pathlib import Path

TINY_TOKENIZER = Path(__file__).resolve().parents[2] / "src" / "flash41" / "checkpoint" / "data" / "tiny"
TINY_IMAGE_ID = 1015
