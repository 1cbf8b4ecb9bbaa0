from typing import Any

import pytest

from flash41.chat.conversation import ChatCodec
from flash41.chat.protocols import Protocol
from flash41.server.local_images import disguised, local_path, without_pixels


@pytest.mark.parametrize(
    ("address", "path"),
    [
        ("file:///srv/a.png", "/srv/a.png"),
        ("FILE:///srv/a.png", "/srv/a.png"),
        ("file://localhost/srv/a%20b.png", "/srv/a b.png"),
        ("file:///srv/a.png?x=1#y", "/srv/a.png"),
    ],
)
def test_addresses_of_local_files_survive_the_codec_in_disguise(address: str, path: str) -> None:
    for body in ({"image_url": {"url": address}}, {"image_url": address}, [{"source": {"url": address}}]):
        text = str(disguised(body))
        assert "file:" not in text.lower().replace("local-file", "")
    assert local_path(disguised({"url": address})["url"]) == path


@pytest.mark.parametrize(
    "address", ["https://example.org/a", "data:image/png;base64,AA", "file://host/a", "file:a", "file://["]
)
def test_other_addresses_stay(address: str) -> None:
    body = {"messages": [{"content": [{"type": "image_url", "image_url": {"url": address}}]}]}
    assert disguised(body) == body
    assert local_path(address) is None


def test_pixels_are_left_out_for_whoever_needs_the_rest(codec: ChatCodec) -> None:
    url, kind = "data:image/png;base64,AAAA", "image/png"
    bodies: dict[Protocol, dict[str, Any]] = {
        Protocol.CHAT: {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}]},
        Protocol.RESPONSES: {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": url}]}]},
        Protocol.MESSAGES: {
            "max_tokens": 5,
            "messages": [
                {
                    "role": "user",
                    "content": [{"type": "image", "source": {"type": "base64", "media_type": kind, "data": "AAAA"}}],
                }
            ],
        },
    }
    for protocol, body in bodies.items():
        found = without_pixels(body)
        assert "AAAA" not in str(found)
        ids = [codec.encode(codec.convert(one, protocol=protocol)).ids for one in (body, found)]
        assert ids[0] == ids[1]
    assert without_pixels({"url": "https://example.org", "text": url}) == {"url": "https://example.org", "text": url}


def test_texts_are_left_alone() -> None:
    body = {"messages": [{"content": "file:///a", "name": "file:///b"}], "n": 1, "stop": ["file:///c"], "x": None}
    assert disguised(body) == body
