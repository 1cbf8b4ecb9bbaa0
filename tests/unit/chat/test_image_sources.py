import base64
import os
from pathlib import Path
from urllib.parse import quote_from_bytes

import pytest

from flash41.chat.image_decode import ImageLimits
from flash41.chat.image_errors import ImageError, ImageFault
from flash41.chat.image_sources import bytes_below, file_bytes, image_bytes
from flash41.errors import RequestError

DATA = bytes(range(256))
BASE64 = base64.b64encode(DATA).decode()
LONGER = base64.b64encode(DATA + b"a").decode()
LIMITS = ImageLimits(max_file_bytes=len(DATA))
REFUSAL = r"image file: got '.*', expected a file below the image root"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder with one image, beside a file that is nobody's business."""
    (tmp_path / "secret.png").write_bytes(b"secret")
    folder = tmp_path / "images"
    (folder / "cats").mkdir(parents=True)
    (folder / "cats" / "a b.png").write_bytes(DATA)
    return folder


@pytest.mark.parametrize(
    "url",
    [
        f"data:image/png;base64,{BASE64}",
        f"data:;base64,{BASE64}",
        f"DATA:image/jpeg;charset=x;BASE64,{BASE64}",
        f"data:image/png;base64,{BASE64.replace('/', '%2F')}",
        f"data:image/png,{quote_from_bytes(DATA)}",
    ],
)
def test_a_data_url_holds_its_bytes(url: str) -> None:
    assert image_bytes(url) == DATA
    assert image_bytes(url, limits=LIMITS) == DATA


@pytest.mark.parametrize("url", ["data:image/png;base64,AAA", "data:;base64,A*==", "data:image/png", "data:;base64,ü"])
def test_a_broken_data_url_is_refused(url: str) -> None:
    with pytest.raises(ImageError, match="data URL: got") as caught:
        image_bytes(url)
    assert caught.value.kind is ImageFault.DECODE


@pytest.mark.parametrize("url", [f"data:;base64,{LONGER}", f"data:,{'a' * 257}", f"data:;base64,{'A' * 4096}"])
def test_a_data_url_may_hold_so_many_bytes(url: str) -> None:
    with pytest.raises(ImageError, match="expected at most 256") as caught:
        image_bytes(url, limits=LIMITS)
    assert caught.value.kind is ImageFault.SIZE


@pytest.mark.parametrize(
    "address", ["http://x/y.png", "https://x/y.png", "file:///etc/hostname", "/etc/hostname", "a.png"]
)
def test_without_a_root_only_data_urls_are_served(address: str) -> None:
    with pytest.raises(RequestError, match=r"image address: got '.*', expected a data URL$"):
        image_bytes(address)


@pytest.mark.parametrize("address", ["http://x/y.png", "ftp://x/y.png", "file://host/y.png"])
def test_nothing_is_fetched_from_elsewhere(address: str, root: Path) -> None:
    with pytest.raises(RequestError, match="expected a data URL or a file below the image root"):
        image_bytes(address, root)


def test_a_file_below_the_root_is_served_by_path_and_by_url(root: Path) -> None:
    path = root / "cats" / "a b.png"
    for address in ("cats/a b.png", "cats/../cats/a b.png", str(path), path.as_uri(), f"file://localhost{path}"):
        assert image_bytes(address, root) == DATA, address


def test_a_link_inside_the_root_is_followed_and_one_to_the_outside_is_not(root: Path) -> None:
    (root / "inside.png").symlink_to(root / "cats" / "a b.png")
    (root / "outside.png").symlink_to(root.parent / "secret.png")
    (root / "folder").symlink_to(root.parent)
    (root / "circle.png").symlink_to(root / "circle.png")
    assert bytes_below(root, "inside.png") == DATA
    for name in ("outside.png", "folder/secret.png", "circle.png"):
        with pytest.raises(RequestError, match=REFUSAL):
            bytes_below(root, name)


def test_a_root_may_be_a_link_itself(root: Path) -> None:
    link = root.parent / "link"
    link.symlink_to(root)
    assert bytes_below(link, "cats/a b.png") == DATA


def test_what_lies_outside_and_what_does_not_exist_look_the_same(root: Path) -> None:
    os.mkfifo(root / "pipe")
    messages = set()
    for name in ("../secret.png", "../nothing.png", "cats", "", "cats/none", "a\0b", "pipe"):
        with pytest.raises(RequestError, match=REFUSAL) as caught:
            bytes_below(root, name)
        messages.add(str(caught.value).replace(repr(name), "NAME"))
    assert len(messages) == 1
    with pytest.raises(RequestError, match=REFUSAL):
        bytes_below(root, str(root.parent / "secret.png"))
    with pytest.raises(RequestError, match=REFUSAL):
        bytes_below(root / "missing", "cats/a b.png")


def test_a_file_may_have_so_many_bytes(root: Path) -> None:
    path = root / "cats" / "a b.png"
    assert file_bytes(path, LIMITS) == DATA
    with pytest.raises(ImageError, match="bytes of an image: got '256 or more', expected at most 255") as caught:
        file_bytes(path, ImageLimits(max_file_bytes=255))
    assert caught.value.kind is ImageFault.SIZE
    with pytest.raises(ImageError, match="or more"):
        bytes_below(root, "cats/a b.png", ImageLimits(max_file_bytes=10))


def test_devices_and_pipes_are_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(OSError, match="no regular file"):
            file_bytes(path)
