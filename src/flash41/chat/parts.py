"""Contents of messages that hold pictures, in our own records and on the wire.

    Message(role="user", content=("What is this?", Image(Path("cat.png"))))

A content is a text, or a sequence of parts in the order in which the model reads them: texts, images, or parts as Chat
Completions spells them.  Whoever builds such a content names files of its own, so any path may be given; what comes
from strangers comes as a body and is limited by whoever takes it.
"""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flash41.chat.image_sources import file_bytes
from flash41.errors import RequestError, complaint

WIRE_TYPE = "image/png"
"""Declared for bytes of any format: only those that begin a file are believed."""

STAND_IN = f"data:{WIRE_TYPE};base64,"
"""Keeps the place of a picture whose pixels somebody has already: rendering looks at places only."""

ImageData = bytes | Path | str
"""An image file: its bytes, where it lies, or a data URL."""


@dataclass(frozen=True, slots=True)
class Image:
    """A picture among the parts of a message."""

    data: ImageData
    detail: str = "high"
    """`low` shows at most 512 pixels of the longer side; `high`, `original` and `auto` mean the same."""


Part = str | Image | Mapping[str, Any]
"""A text, a picture, or a part as Chat Completions spells it."""
Content = str | Sequence[Part]


def wire_content(content: Content) -> str | list[dict[str, Any]]:
    """A content as Chat Completions spells it.  Raises RequestError for a file that cannot be read."""
    if isinstance(content, str):
        return content
    return [_wire_part(part) for part in content]


def text_of(content: Content) -> str:
    """The texts of a content, without its pictures."""
    if isinstance(content, str):
        return content
    return "\n\n".join(part for part in content if isinstance(part, str))


def data_url(data: ImageData) -> str:
    """An image file as a data URL.  Raises RequestError for a path that cannot be read."""
    if isinstance(data, str):
        return data
    if isinstance(data, Path):
        data = read_file(data)
    return f"data:{WIRE_TYPE};base64,{base64.b64encode(data).decode('ascii')}"


def read_file(path: Path) -> bytes:
    """The bytes of an image file.  Raises RequestError with its name, ImageError if there are too many."""
    try:
        return file_bytes(path)
    except OSError as error:
        raise RequestError(complaint(f"image {path}", str(error), "a file that can be read")) from error


def _wire_part(part: Part) -> dict[str, Any]:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    if isinstance(part, Image):
        return {"type": "image_url", "image_url": {"url": data_url(part.data), "detail": part.detail}}
    return dict(part)
