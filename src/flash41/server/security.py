"""Who may speak to the server.

- The `Host` header must name the server: `localhost`, a plain address, the bound name, or an allowed one.  A page in a
  browser can make a name of its own point here (DNS rebinding), but it cannot make its name be one of these.
- Where API keys are set, every path but the open ones wants one, as `Authorization: Bearer KEY` or `x-api-key: KEY`.
  Comparison takes the same time whatever is wrong.
- What is shown in a browser may load nothing from elsewhere and run in nobody's frame.
"""

import hashlib
import hmac
import ipaddress
from collections.abc import Mapping
from pathlib import Path

from starlette.types import Scope

from flash41.errors import ConfigError, combined, complaint
from flash41.server.api_errors import ApiError
from flash41.server.settings import ServerSettings

LARGEST_HEAD_BYTES = 32_768
"""Request line and headers."""
OPEN_PATHS = ("/health", "/ready", "/")
OPEN_PREFIX = "/web/"
"""The page itself is open; what it asks for is not."""
SMALLEST_KEY = 16
"""Characters of an API key; shorter ones can be guessed."""

PAGE_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
}


def read_keys(path: Path) -> tuple[str, ...]:
    """The API keys of a file, one a line; empty lines and lines that begin with # are skipped.

    Raises ConfigError for a file without keys and for every key that is too short or no plain text; a key itself is
    never shown.
    """
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    numbered = [(number, line.strip()) for number, line in enumerate(lines, 1)]
    keys = [(number, key) for number, key in numbered if key and not key.startswith("#")]
    faults = [
        complaint(f"API key in line {number}", f"{len(key)} characters", f"{SMALLEST_KEY} or more, plain ASCII")
        for number, key in keys
        if len(key) < SMALLEST_KEY or not (key.isascii() and key.isprintable()) or " " in key
    ]
    if not keys:
        faults.append(complaint(f"API keys in {path}", 0, "at least one"))
    if faults:
        raise ConfigError(combined(faults))
    return tuple(key for _, key in keys)


def check_head(scope: Scope) -> None:
    """Raises ApiError for a head above its bound, which the parser lets pass where it arrives in one piece."""
    size = len(scope.get("raw_path") or b"") + len(scope.get("query_string") or b"")
    size += sum(len(name) + len(value) + 4 for name, value in scope["headers"])
    if size > LARGEST_HEAD_BYTES:
        raise ApiError(431, f"request line and headers: got {size} bytes, expected at most {LARGEST_HEAD_BYTES}")


class Guard:
    """Checks the headers of one request against the settings."""

    def __init__(self, settings: ServerSettings) -> None:
        names = {settings.host, "localhost", *settings.allowed_hosts}
        self._names = frozenset(name.lower().strip("[]") for name in names)
        self._digests = tuple(hashlib.sha256(key.encode()).digest() for key in settings.api_keys)

    def check_host(self, host: str | None) -> None:
        """Raises ApiError for a host that is none of the server's names."""
        name = _host_name(host or "")
        if not name or (name not in self._names and not _is_address(name)):
            raise ApiError(403, "this host name is not served here; name it with --allowed-host", code="unknown_host")

    def salt(self, path: str, headers: Mapping[str, str]) -> bytes:
        """What keeps this caller's cached prefixes apart; empty with one key or none.

        Raises ApiError where a key is wanted and none, or a wrong one, is shown.
        """
        if not self._digests or path in OPEN_PATHS or path.startswith(OPEN_PREFIX):
            return b""
        scheme, _, bearer = headers.get("authorization", "").partition(" ")
        shown = bearer.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")
        digest = hashlib.sha256(shown.encode()).digest()
        found = [hmac.compare_digest(digest, known) for known in self._digests]  # all of them, always
        if not any(found):
            raise ApiError(401, "a valid API key is wanted, as Authorization: Bearer KEY", code="invalid_api_key")
        return digest if len(self._digests) > 1 else b""


def _host_name(host: str) -> str:
    """The name without port and brackets, in small letters."""
    if host.startswith("["):
        return host.partition("]")[0].strip("[").lower()
    return host.partition(":")[0].lower().rstrip(".")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
