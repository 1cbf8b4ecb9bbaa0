"""Addresses of local files in bodies: the codec knows http and data URLs only, so they travel past it in disguise.

    file:///srv/images/a%20cat.png  ──►  https://local-file.invalid/srv/images/a%20cat.png  ──►  the path

No name below `.invalid` exists, so nothing else is meant by such an address; and whoever writes it like this gets what
the other spelling gives: a file below the image root, or the same refusal.
"""

from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote, urlsplit

from flash41.chat.parts import STAND_IN

DISGUISE = "https://local-file.invalid"
HOSTS = ("", "localhost")


def disguised(value: Any) -> Any:
    """A body, or a part of one, with every address of a local file among its images in disguise."""
    if isinstance(value, list):
        return [disguised(item) for item in value]
    if not isinstance(value, Mapping):
        return value
    return {key: _address(item) if key in ("url", "image_url") else disguised(item) for key, item in value.items()}


def local_path(url: str) -> str | None:
    """The path that a disguised address means; None for any other address."""
    return unquote(urlsplit(url).path) if url.startswith(f"{DISGUISE}/") else None


def without_pixels(value: Any) -> Any:
    """A body, or a part of one, with a stand-in for every picture: for whoever reads it for another reason."""
    if isinstance(value, list):
        return [without_pixels(item) for item in value]
    if not isinstance(value, Mapping):
        return value
    found = {key: _stand_in(key, item) for key, item in value.items()}
    return {**found, "data": ""} if value.get("type") == "base64" and "data" in value else found


def _stand_in(key: str, value: Any) -> Any:
    is_pixels = key in ("url", "image_url") and isinstance(value, str) and value[:5].lower() == "data:"
    return STAND_IN if is_pixels else without_pixels(value)


def _address(value: Any) -> Any:
    if not isinstance(value, str):
        return disguised(value)
    if not value.lower().startswith("file://"):
        return value
    try:
        parts = urlsplit(value)
    except ValueError:
        return value
    return DISGUISE + parts.path if parts.netloc in HOSTS and parts.path.startswith("/") else value
