import base64
import os
from pathlib import Path

import pytest

from flash41.chat.conversation import ChatCodec, Message
from flash41.chat.image_errors import ImageError, ImageFault
from flash41.chat.parts import STAND_IN, Image, data_url, read_file, text_of, wire_content
from flash41.errors import RequestError

URL = "data:image/png;base64,AAAA"


def test_a_text_is_a_text_on_the_wire() -> None:
    assert wire_content("hello") == "hello"


def test_parts_keep_their_order_and_their_spelling(tmp_path: Path) -> None:
    file = tmp_path / "a.png"
    file.write_bytes(b"bytes of a file")
    given = {"type": "image_url", "image_url": {"url": URL}}
    found = wire_content(["first", Image(file), given, Image(b"x", detail="low"), "last", Image(URL)])
    in_file = "data:image/png;base64," + base64.b64encode(b"bytes of a file").decode()
    assert found == [
        {"type": "text", "text": "first"},
        {"type": "image_url", "image_url": {"url": in_file, "detail": "high"}},
        given,
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,eA==", "detail": "low"}},
        {"type": "text", "text": "last"},
        {"type": "image_url", "image_url": {"url": URL, "detail": "high"}},
    ]


def test_the_text_of_a_content_leaves_pictures_out() -> None:
    assert text_of("a") == "a"
    assert text_of(("a", Image(b""), "b")) == "a\n\nb"


def test_a_file_that_cannot_be_read_is_refused_with_its_name(tmp_path: Path) -> None:
    for path in (tmp_path / "missing.png", tmp_path):
        with pytest.raises(RequestError, match=f"image {path}: got .*, expected a file that can be read"):
            read_file(path)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(RequestError, match="no regular file"):
        data_url(pipe)


def test_a_file_larger_than_any_image_may_be_is_refused(tmp_path: Path) -> None:
    large = tmp_path / "large.png"
    with large.open("wb") as file:
        file.truncate((32 << 20) + 1)
    with pytest.raises(ImageError) as raised:
        read_file(large)
    assert raised.value.kind is ImageFault.SIZE


def test_the_codec_renders_pictures_between_texts(small_codec: ChatCodec) -> None:
    message = Message(role="user", content=("A", Image(STAND_IN), "B"))
    prompt = small_codec.encode(small_codec.conversation([message], thinking=False))
    (image,) = (
        spelling
        for spelling in [small_codec.tokenizer.token_text(token) for token in prompt.ids]
        if "image" in spelling
    )
    assert f"A\n\n{image}\n\nB" in prompt.text
    assert [(source.kind, source.detail) for source in prompt.images] == [("data_url", "high")]


def test_an_assistant_shows_no_pictures(small_codec: ChatCodec) -> None:
    messages = [Message(role="user", content="a"), Message(role="assistant", content=(Image(URL),))]
    with pytest.raises(RequestError, match="Image in assistant message is not supported"):
        small_codec.conversation([*messages, Message(role="user", content="b")])
