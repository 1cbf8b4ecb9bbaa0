"""What commands tell of pictures: what each costs, and the size it is shown in."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any


def image_facts(files: Sequence[Path], pictures: Sequence[Any]) -> list[dict[str, Any]]:
    """One object per picture: its file, the positions it takes in the prompt, and the pixels the model is shown."""
    return [
        {
            "file": str(file),
            "tokens": picture.plan.num_tokens,
            "width": picture.plan.width,
            "height": picture.plan.height,
        }
        for file, picture in zip(files, pictures, strict=True)
    ]
