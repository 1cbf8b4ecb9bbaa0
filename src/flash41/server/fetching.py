"""Pictures from other servers, for those who allow it: whoever asks names an address, and this machine goes there.

    resolve the name ──► every address must be public ──► connect to that very address ──► read under limits

So nobody reaches a private network, this machine or its neighbours through the server: not by a name that points there,
not by a redirect, and not by a name that points elsewhere the second time it is asked for.  No proxy of the environment
is used, no credentials are sent, and what comes back must be as plain as it is on disk.
"""

import http.client
import ipaddress
import socket
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import SplitResult, urljoin, urlsplit

from flash41.chat.image_errors import ImageError, ImageFault
from flash41.errors import RequestError, complaint

PORTS = {"http": 80, "https": 443}
REDIRECTS = (301, 302, 303, 307, 308)
CHUNK_BYTES = 1 << 16
HEADERS = {"accept": "image/*", "accept-encoding": "identity", "user-agent": "flash41", "connection": "close"}
NAT64 = ipaddress.ip_network("64:ff9b::/96")

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
IsAllowed = Callable[[Address], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchLimits:
    """What a picture from elsewhere may cost."""

    max_bytes: int = 32 << 20
    """Bytes of a picture."""
    seconds: float = 10.0
    """Time for everything, redirects included."""
    max_redirects: int = 3
    """Redirects that are followed."""


class FetchError(RequestError):
    """A picture that could not be fetched."""

    def __init__(self, got: str, expected: str, *, is_retryable: bool = False) -> None:
        super().__init__(complaint("image address", got, expected))
        self.is_retryable = is_retryable
        """Whether the fault may be gone the next time."""


def is_public(address: Address) -> bool:
    """Whether an address belongs to the open internet, also behind the forms in which IPv6 carries IPv4."""
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour
        if inner is None and address in NAT64:
            inner = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        if inner is not None:
            return is_public(inner)
    return address.is_global and not address.is_multicast


def fetch(url: str, limits: FetchLimits, is_allowed: IsAllowed = is_public) -> bytes:
    """The bytes behind an http or https address.

    FetchError for whatever does not answer as it should, ImageError for more bytes than allowed.
    """
    deadline = time.monotonic() + limits.seconds
    for _ in range(limits.max_redirects + 1):
        target = _parsed(url)
        found = _get(target, limits, deadline, is_allowed)
        if isinstance(found, bytes):
            return found
        url = urljoin(url, found)
    raise FetchError("redirects without end", f"at most {limits.max_redirects}")


def _parsed(url: str) -> SplitResult:
    try:
        target = urlsplit(url)
        is_sound = target.scheme in PORTS and bool(target.hostname) and target.port != 0
    except ValueError:
        is_sound = False
    if not is_sound or target.username is not None or target.password is not None:
        raise FetchError("one that cannot be fetched", "http or https, a host, and no user in it")
    return target


def _get(target: SplitResult, limits: FetchLimits, deadline: float, is_allowed: IsAllowed) -> bytes | str:
    """The body of an answer, or where it says that the picture is."""
    assert target.hostname is not None, target
    port = target.port or PORTS[target.scheme]
    place = _checked_address(target.hostname, port, is_allowed)
    try:
        with socket.create_connection(place, timeout=_left(deadline)) as plain:
            # A peer that trickles restarts every timeout of a socket, but not this one.
            timer = threading.Timer(_left(deadline), _shut, (plain,))
            timer.daemon = True
            timer.start()
            try:
                return _asked(target, port, plain, limits)
            finally:
                timer.cancel()
    except (OSError, http.client.HTTPException, ValueError) as error:
        got = "no answer in time" if time.monotonic() >= deadline else f"a failure ({type(error).__name__})"
        raise FetchError(got, "a server that answers", is_retryable=True) from error


def _asked(target: SplitResult, port: int, plain: socket.socket, limits: FetchLimits) -> bytes | str:
    assert target.hostname is not None, target
    connection = http.client.HTTPConnection(target.hostname, port)
    if target.scheme == "https":
        connection.sock = ssl.create_default_context().wrap_socket(plain, server_hostname=target.hostname)
    else:
        connection.sock = plain
    connection.auto_open = 0
    host = f"[{target.hostname}]" if ":" in target.hostname else target.hostname
    named = host if target.port is None else f"{host}:{target.port}"
    path = (target.path or "/") + (f"?{target.query}" if target.query else "")
    try:
        connection.request("GET", path, headers={"host": named, **HEADERS})
        with connection.getresponse() as response:
            return _read(response, limits)
    finally:
        connection.close()


def _read(response: http.client.HTTPResponse, limits: FetchLimits) -> bytes | str:
    location = response.getheader("location")
    if response.status in REDIRECTS and location:
        return location
    if response.status != http.HTTPStatus.OK:
        is_retryable = response.status >= 500 or response.status in (408, 429)
        raise FetchError(f"status {response.status}", "status 200", is_retryable=is_retryable)
    if response.getheader("content-encoding", "identity").lower() != "identity":
        raise FetchError("a compressed answer", "the file as it is")
    length = response.length or 0
    parts, total = list[bytes](), 0
    while length <= limits.max_bytes:
        part = response.read1(CHUNK_BYTES)
        if not part:
            break
        parts.append(part)
        total += len(part)
        length = max(length, total)
    if length > limits.max_bytes:
        raise ImageError(ImageFault.SIZE, "bytes of an image", f"{length} or more", f"at most {limits.max_bytes}")
    if total < length:
        raise FetchError("an answer that breaks off", "a whole file", is_retryable=True)
    return b"".join(parts)


def _checked_address(host: str, port: int, is_allowed: IsAllowed) -> tuple[str, int]:
    """An address of a host, all of whose addresses are allowed."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise FetchError("a host that has no address", "one that can be found", is_retryable=True) from error
    names = [str(entry[4][0]) for entry in found]
    if not names or not all(is_allowed(ipaddress.ip_address(name)) for name in names):
        raise FetchError("a host that is not public", "one of the open internet")
    return names[0], port


def _left(deadline: float) -> float:
    return max(0.001, deadline - time.monotonic())


def _shut(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        connection.close()  # nobody is connected any more
