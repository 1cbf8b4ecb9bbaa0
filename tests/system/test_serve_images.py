"""Pictures over HTTP: a process, a small random model, sound files and hostile ones within two seconds and 600 MB."""

import base64
import io
import re
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from PIL import Image

from helpers.image_files import encoded, pattern, png, resized_jpeg, segment, with_segments, zero_png
from helpers.lazily import lazily
from helpers.server_process import ServerProcess, serving

anthropic, openai = lazily("anthropic"), lazily("openai")

NAME = "DeepSeek-V4.1-Flash"
PATH = "/v1/chat/completions"
SECONDS, MEGABYTES = 2.0, 600
PIXELS = pattern(60, 45)
PNG = encoded(PIXELS)
COST = 10


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("root")
    (root / "a.png").write_bytes(PNG)
    return root


@pytest.fixture(scope="module")
def server(tiny_directory: Path, root: Path) -> Iterator[ServerProcess]:
    options = ("--block-size", "16", "--state-image-interval", "16", "--image-root", str(root))
    with serving(tiny_directory, *options) as found:
        yield found


def part(data: bytes) -> dict[str, Any]:
    return address(f"data:image/png;base64,{base64.b64encode(data).decode()}")


def address(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


def body(*parts: dict[str, Any], **values: Any) -> dict[str, Any]:
    content = [{"type": "text", "text": "What is this?"}, *parts]
    return {"messages": [{"role": "user", "content": content}], "max_tokens": 4, "seed": 3, **values}


def post(server: ServerProcess, *parts: dict[str, Any], **values: Any) -> httpx.Response:
    return httpx.post(server.url + PATH, json=body(*parts, **values), timeout=60)


def largest_megabytes(server: ServerProcess) -> float:
    """The most memory the process has had."""
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert found is not None, status
    return int(found[1]) / 1000


def test_the_plan_names_what_pictures_need(server: ServerProcess) -> None:
    assert any(line.startswith("rows of pictures ") for line in server.said)
    assert any(line.startswith("image encoder bytes ") for line in server.said)


def test_clients_show_pictures_and_the_same_one_in_another_file_is_cached(server: ServerProcess) -> None:
    files = [PNG, encoded(PIXELS, "WEBP", lossless=True), encoded(pattern(60, 45) // 2)]
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=60) as client:
        found = [client.chat.completions.create(model=NAME, **body(*[part(file)] * 3)) for file in files]
    first, again, other = (one.usage for one in found)
    assert first.prompt_tokens == again.prompt_tokens == other.prompt_tokens
    assert again.prompt_tokens_details.cached_tokens > other.prompt_tokens_details.cached_tokens + COST
    messages = [one.choices[0].message for one in found]
    assert (messages[0].reasoning_content, messages[0].content) == (messages[1].reasoning_content, messages[1].content)


def test_messages_and_responses_take_pictures(server: ServerProcess) -> None:
    source = {"type": "base64", "media_type": "image/png", "data": base64.b64encode(PNG).decode()}
    content: list[Any] = [{"type": "image", "source": source}, {"type": "text", "text": "What is this?"}]
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0, timeout=60) as claude:
        asked: list[Any] = [{"role": "user", "content": content}]
        shown = claude.messages.create(model=NAME, max_tokens=4, messages=asked)
        counted = claude.messages.count_tokens(model=NAME, messages=asked)
    assert shown.usage.input_tokens + (shown.usage.cache_read_input_tokens or 0) == counted.input_tokens > COST
    items = [{"type": "input_image", "image_url": part(PNG)["image_url"]["url"]}]
    reply = httpx.post(
        f"{server.url}/v1/responses",
        json={"input": [{"role": "user", "content": items}], "max_output_tokens": 4},
        timeout=60,
    )
    assert reply.json()["usage"]["input_tokens"] > COST


def test_a_file_below_the_root_is_the_same_picture(server: ServerProcess, root: Path) -> None:
    texts = [post(server, one).json()["choices"][0]["message"] for one in (part(PNG), address(f"file://{root}/a.png"))]
    assert texts[0] == texts[1]
    assert post(server, address("file:///etc/hostname")).status_code == 400


def animated() -> bytes:
    frames = [Image.fromarray(pattern(60, 45) + shift) for shift in range(3)]
    file = io.BytesIO()
    frames[0].save(file, "GIF", save_all=True, append_images=frames[1:], duration=10)
    return file.getvalue()


def turned() -> bytes:
    """A JPEG whose EXIF says that it lies on its side."""
    exif = b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0"
    return with_segments(encoded(PIXELS, "JPEG"), segment(0xE1, exif))


HOSTILE: dict[str, tuple[bytes, str | None]] = {
    # what                    the file, and the kind of its error or None where it is a picture
    "bomb beyond": (png(6_400, 6_400), "ImageDimensionsTooLarge"),
    "one pixel wide": (png(1, 100_000), "ImageDimensionsTooLarge"),
    "sixteen bits": (zero_png(400, 300, depth=16), None),
    "cmyk": (encoded(Image.new("CMYK", (60, 45), (9, 99, 199, 40)), "JPEG"), None),
    "animated": (animated(), None),
    "turned by exif": (turned(), None),
    "claims thirty-six megapixels": (resized_jpeg(encoded(PIXELS, "JPEG"), 9_000, 4_000), None),
    "truncated": (PNG[: len(PNG) // 2], "Decode"),
    "svg": (b'<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"/>', "UnsupportedMediaType"),
    "page and gif": (b"GIF89a<script>alert(1)</script>", "Decode"),
    "png with a zip behind": (PNG + b"PK\x03\x04" + bytes(900), None),
    "no pixels": (png(0, 0), "EmptyImage"),
    "no bytes": (b"", "EmptyImage"),
    "gif of no size": (b"GIF89a" + struct.pack("<HHBBB", 0, 0, 0, 0, 0) + b"\x2c" + bytes(9), "EmptyImage"),
}


def test_hostile_files_end_as_documented_within_two_seconds_and_600_megabytes(server: ServerProcess) -> None:
    post(server, part(PNG))
    before = largest_megabytes(server)
    bomb = zero_png(6_324, 6_324)  # forty megapixels in half a megabyte
    for name, (data, kind) in {"bomb": (bomb, None), **HOSTILE}.items():
        started = time.monotonic()
        reply = post(server, part(data))
        seconds = time.monotonic() - started
        if kind is None:
            assert reply.status_code == 200, (name, reply.text)
        else:
            error = reply.json()["error"]
            assert (reply.status_code, error["code"], error["param"]) == (400, kind, "messages[0]"), (name, reply.text)
        assert seconds < 5 * SECONDS, (name, seconds)
    assert largest_megabytes(server) - before < MEGABYTES
    assert server.process.poll() is None


def test_nothing_is_left_of_pictures_in_flight_and_no_word_of_them_in_the_log(server: ServerProcess) -> None:
    stats = httpx.get(f"{server.url}/v1/stats", timeout=60).json()
    assert stats["engine"]["num_running"] == stats["engine"]["num_waiting"] == 0
    log = "".join(server.log)
    assert "base64" not in log
    assert "Traceback" not in log
