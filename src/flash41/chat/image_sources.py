"""Where the bytes of an image come from: data URLs, and local files where a caller opens a folder for them.

    data:image/png;base64,iVBOR...         the bytes themselves; the declared type is not believed
    file:///srv/images/cat.png, cat.png    below the image root and nowhere else, symbolic links resolved

Nothing is fetched from a network.  Outside the root a file that exists and one that does not give the same error, so
nobody learns which files there are.
"""

import base64
import binascii
import os
import stat
from pathlib import Path
from urllib.parse import unquote, unquote_to_bytes, urlsplit

from flash41.chat.image_decode import DEFAULT_LIMITS, ImageLimits
from flash41.chat.image_errors import ImageError, ImageFault
from flash41.errors import RequestError, complaint

SHOWN = 40
"""Characters of an address that an error repeats."""


def image_bytes(address: str, root: Path | None = None, limits: ImageLimits = DEFAULT_LIMITS) -> bytes:
    """The bytes behind a data URL, or behind a file below `root` where there is one.

    ImageError for a broken or oversized image, RequestError for an address that is not served.
    """
    if address[:5].lower() == "data:":
        return data_url_bytes(address, limits)
    parts = urlsplit(address) if "://" in address else None
    if root is None or (parts is not None and (parts.scheme != "file" or parts.netloc not in ("", "localhost"))):
        expected = "a data URL" if root is None else "a data URL or a file below the image root"
        raise RequestError(complaint("image address", address[:SHOWN], expected))
    return bytes_below(root, address if parts is None else unquote(parts.path), limits)


def data_url_bytes(url: str, limits: ImageLimits = DEFAULT_LIMITS) -> bytes:
    """The body of a data URL, base64 or percent-encoded; ImageError if it is neither."""
    head, comma, body = url.partition(",")
    if not comma:
        raise ImageError(ImageFault.DECODE, "data URL", "no comma", "data:[type][;base64],body")
    is_base64 = head.lower().endswith(";base64")
    # A byte takes four characters at most: in base64 whose every character is percent-encoded.
    if len(body) > 4 * limits.max_file_bytes:
        raise _too_large(f"{len(body)} characters", limits)
    try:
        data = unquote_to_bytes(body)
        data = base64.b64decode(data, validate=True) if is_base64 else data
    except (binascii.Error, ValueError) as error:
        raise ImageError(ImageFault.DECODE, "data URL", str(error), "a body in base64") from error
    if len(data) > limits.max_file_bytes:
        raise _too_large(len(data), limits)
    return data


def bytes_below(root: Path, name: str, limits: ImageLimits = DEFAULT_LIMITS) -> bytes:
    """A file by its path relative to `root`, or by an absolute path below it.

    RequestError, always the same, for whatever is not a readable file below the root once links are resolved.
    """
    refusal = RequestError(complaint("image file", name[-SHOWN:], "a file below the image root"))
    try:
        base = root.resolve(strict=True)
        path = (base / name).resolve(strict=True)
        if not path.is_relative_to(base):
            raise refusal
        return file_bytes(path, limits)
    except (OSError, ValueError, RuntimeError) as error:  # missing, unreadable, a name with NUL, a circle of links
        raise refusal from error


def file_bytes(path: Path, limits: ImageLimits = DEFAULT_LIMITS) -> bytes:
    """The bytes of a regular file; OSError as the system says, ImageError if there are too many."""
    # Not blocking, so that a pipe without a writer is refused instead of waited for.
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError("no regular file")
        data = file.read(limits.max_file_bytes + 1)
    if len(data) > limits.max_file_bytes:
        raise _too_large(f"{len(data)} or more", limits)
    return data


def _too_large(got: object, limits: ImageLimits) -> ImageError:
    return ImageError(ImageFault.SIZE, "bytes of an image", got, f"at most {limits.max_file_bytes}")
