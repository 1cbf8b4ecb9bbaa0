import pytest

from flash41.server.local_images import disguised, local_path


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


def test_texts_are_left_alone() -> None:
    body = {"messages": [{"content": "file:///a", "name": "file:///b"}], "n": 1, "stop": ["file:///c"], "x": None}
    assert disguised(body) == body
