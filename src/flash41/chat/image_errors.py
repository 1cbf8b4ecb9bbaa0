"""The one error of this room's images, with the kinds that the hosted service names.

spec: vision.md section 3.
"""

import enum

from flash41.errors import RequestError, complaint


class ImageFault(enum.Enum):
    """Why an image is refused; the value is the name a client sees."""

    EMPTY = "EmptyImage"
    """No bytes, or a picture without pixels."""
    DECODE = "Decode"
    """Broken, truncated, or more work than a picture of its size may cause."""
    MEDIA_TYPE = "UnsupportedMediaType"
    """Not PNG, JPEG, WebP or GIF."""
    DIMENSIONS = "ImageDimensionsTooLarge"
    """Too many pixels on one side or in all."""
    SIZE = "ImageTooLarge"
    """Too many bytes in one file."""
    TOTAL_SIZE = "TotalSizeTooLarge"
    """Too many bytes in all files of a request."""
    COUNT = "TooManyImages"
    """Too many images in a request."""


class ImageError(RequestError):
    """An image that is refused; nothing of it was handed on."""

    def __init__(self, kind: ImageFault, thing: str, got: object, expected: str, remedy: str | None = None) -> None:
        super().__init__(complaint(thing, got, expected, remedy))
        self.kind = kind
