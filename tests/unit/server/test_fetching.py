"""Pictures from other servers, here from a server of this test: only addresses that are allowed, and within limits."""

import http.server
import ipaddress
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest

from flash41.chat.image_errors import ImageError, ImageFault
from flash41.server.fetching import Address, FetchError, FetchLimits, fetch, is_public

BODY = bytes(range(256)) * 8
LIMITS = FetchLimits(max_bytes=4096, seconds=5.0, max_redirects=2)


@dataclass
class Other:
    """A server whose paths do what their names say, and the requests it got."""

    port: int = 0
    seen: list[tuple[str, dict[str, str]]] = field(default_factory=list)

    def url(self, path: str, host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.port}/{path}"


@pytest.fixture
def other() -> Iterator[Other]:
    found = Other()

    class Handler(http.server.BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            found.seen.append((self.path, {name.lower(): value for name, value in self.headers.items()}))
            answer(self, self.path.strip("/"), found)

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        found.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield found
        server.shutdown()
        thread.join()


def answer(handler: http.server.BaseHTTPRequestHandler, path: str, found: Other) -> None:
    def send(status: int, body: bytes = b"", **headers: str) -> None:
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.end_headers()
        handler.wfile.write(body)

    kinds: dict[str, Callable[[], None]] = {
        "ok": lambda: send(200, BODY, content_length=str(len(BODY))),
        "unsized": lambda: send(200, BODY),
        "empty": lambda: send(200, content_length="0"),
        "moved": lambda: send(302, location="/ok"),
        "circle": lambda: send(301, location="/circle"),
        "inward": lambda: send(307, location=found.url("ok", "127.0.0.2")),
        "away": lambda: send(302, location="ftp://127.0.0.1/ok"),
        "nowhere": lambda: send(302),
        "missing": lambda: send(404),
        "failing": lambda: send(503),
        "packed": lambda: send(200, BODY, content_encoding="gzip", content_length=str(len(BODY))),
        "announced": lambda: send(200, b"x", content_length="1000000"),
        "endless": lambda: send(200, b"x" * 100_000),
        "broken": lambda: send(200, b"x", content_length="100"),
        "trickle": lambda: trickle(handler),
        "silent": lambda: time.sleep(2),
    }
    kinds[path]()


def trickle(handler: http.server.BaseHTTPRequestHandler) -> None:
    try:
        for _ in range(100):
            handler.wfile.write(b"H")
            time.sleep(0.02)
    except OSError:
        pass  # the other side has had enough


def loopback(address: Address) -> bool:
    return address == ipaddress.ip_address("127.0.0.1")


@pytest.mark.parametrize("path", ["ok", "unsized", "moved"])
def test_a_file_comes_as_it_is(other: Other, path: str) -> None:
    assert fetch(other.url(path), LIMITS, loopback) == BODY
    assert fetch(other.url("empty"), LIMITS, loopback) == b""


def test_it_is_asked_for_plainly_and_without_credentials(other: Other) -> None:
    fetch(other.url("ok"), LIMITS, loopback)
    ((path, headers),) = other.seen
    assert path == "/ok"
    assert headers == {
        "host": f"127.0.0.1:{other.port}",
        "accept": "image/*",
        "accept-encoding": "identity",
        "user-agent": "flash41",
        "connection": "close",
    }


@pytest.mark.parametrize(
    ("path", "message", "is_retryable"),
    [
        ("circle", "redirects without end", False),
        ("inward", "a host that is not public", False),
        ("away", "one that cannot be fetched", False),
        ("nowhere", "status 302", False),
        ("missing", "status 404", False),
        ("failing", "status 503", True),
        ("packed", "a compressed answer", False),
        ("broken", "an answer that breaks off", True),
    ],
)
def test_what_does_not_answer_as_it_should_is_refused(
    other: Other, path: str, message: str, is_retryable: bool
) -> None:
    with pytest.raises(FetchError, match=message) as raised:
        fetch(other.url(path), LIMITS, loopback)
    assert raised.value.is_retryable is is_retryable
    assert len(other.seen) == (3 if path == "circle" else 1)


@pytest.mark.parametrize("path", ["announced", "endless"])
def test_more_bytes_than_allowed_are_not_read(other: Other, path: str) -> None:
    with pytest.raises(ImageError) as raised:
        fetch(other.url(path), LIMITS, loopback)
    assert raised.value.kind is ImageFault.SIZE


@pytest.mark.parametrize("path", ["silent", "trickle"])
def test_neither_silence_nor_trickling_lasts_longer_than_allowed(other: Other, path: str) -> None:
    started = time.monotonic()
    with pytest.raises(FetchError, match="no answer in time") as raised:
        fetch(other.url(path), FetchLimits(seconds=0.2), loopback)
    assert raised.value.is_retryable
    assert time.monotonic() - started < 5 * 0.2 + 1


def test_nobody_there_is_a_fault_that_may_pass() -> None:
    with pytest.raises(FetchError, match="a failure") as raised:
        fetch("http://127.0.0.1:9/a", LIMITS, loopback)
    assert raised.value.is_retryable


def test_a_host_with_a_private_address_among_others_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def addresses(*_: object, **__: object) -> list[tuple[int, int, int, str, tuple[str, int]]]:
        return [(2, 1, 6, "", (name, 80)) for name in ("93.184.216.34", "10.0.0.7")]

    monkeypatch.setattr("socket.getaddrinfo", addresses)
    monkeypatch.setattr("socket.create_connection", lambda *_, **__: pytest.fail("it was asked all the same"))
    with pytest.raises(FetchError, match="not public"):
        fetch("http://example.org/a", LIMITS)


def test_the_address_that_was_checked_is_the_one_that_is_asked(other: Other, monkeypatch: pytest.MonkeyPatch) -> None:
    names = iter(["127.0.0.1", "10.0.0.7"])

    def addresses(*_: object, **__: object) -> list[tuple[int, int, int, str, tuple[str, int]]]:
        return [(2, 1, 6, "", (next(names), other.port))]

    monkeypatch.setattr("flash41.server.fetching.socket.getaddrinfo", addresses)
    monkeypatch.setattr("flash41.server.fetching.socket.create_connection", connected)
    assert fetch(f"http://rebinding.example:{other.port}/ok", LIMITS, loopback) == BODY
    assert next(names) == "10.0.0.7"  # the second answer was never asked for


def connected(place: tuple[str, int], timeout: float) -> object:
    import socket

    found = socket.socket()
    found.settimeout(timeout)
    found.connect(place)
    return found


@pytest.mark.parametrize(
    "url",
    [
        "ftp://example.org/",
        "http://",
        "http:///a",
        "https://user@example.org/",
        "http://u:p@example.org/",
        "http://[::1",
        "a",
    ],
)
def test_addresses_that_cannot_be_fetched_are_refused(url: str) -> None:
    with pytest.raises(FetchError, match="one that cannot be fetched"):
        fetch(url, LIMITS)


def test_a_name_that_nobody_knows_is_refused() -> None:
    with pytest.raises(FetchError, match=r"a host that has no address|not public"):
        fetch("http://name.invalid/a", LIMITS)


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("93.184.216.34", True),
        ("2606:2800:220:1::1", True),
        ("127.0.0.1", False),
        ("10.1.2.3", False),
        ("172.16.0.1", False),
        ("192.168.1.1", False),
        ("169.254.169.254", False),
        ("100.64.0.1", False),
        ("0.0.0.0", False),
        ("224.0.0.1", False),
        ("255.255.255.255", False),
        ("::1", False),
        ("::", False),
        ("fe80::1", False),
        ("fc00::1", False),
        ("ff02::1", False),
        ("::ffff:10.0.0.1", False),
        ("::ffff:93.184.216.34", True),
        ("2002:0a00:0001::", False),
        ("64:ff9b::10.0.0.1", False),
        ("64:ff9b::93.184.216.34", True),
    ],
)
def test_only_the_open_internet_is_public(address: str, expected: bool) -> None:
    assert is_public(ipaddress.ip_address(address)) is expected
