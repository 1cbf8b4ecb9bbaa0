"""The files of the page: served from the package, with headers that allow nothing from elsewhere."""

import re

import pytest

from flash41.chat.conversation import ChatCodec
from flash41.server.routes.page import MEDIA_TYPES, page_files
from flash41.server.settings import ServerSettings
from helpers.serving import Scripted, call, run

LOADING = re.compile(r"""(?:src|href)=["']([^"'#]+)["']|from ["']([^"']+)["']|url\(([^)]*)\)""")


def texts() -> dict[str, str]:
    return {name: file.content.decode() for name, file in page_files().items()}


def test_the_page_is_served_at_the_root(codec: ChatCodec) -> None:
    reply = Scripted(codec).get("/")
    assert reply.status == 200
    assert reply.headers["content-type"] == "text/html; charset=utf-8"
    assert reply.body == page_files()["index.html"].content


def test_every_file_is_served_under_its_type(codec: ChatCodec) -> None:
    server = Scripted(codec)
    assert {"index.html", "app.js", "style.css", "icon.svg"} <= set(page_files())
    for name, file in page_files().items():
        reply = server.get(f"/web/{name}")
        assert (reply.status, reply.body) == (200, file.content), name
        assert reply.headers["content-type"] == MEDIA_TYPES[name[name.rindex(".") :]]
        assert reply.headers["x-content-type-options"] == "nosniff"


def test_the_policy_allows_only_what_the_server_itself_serves(codec: ChatCodec) -> None:
    policy = Scripted(codec).get("/").headers["content-security-policy"]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    none, own = "'none'", "'self'"
    assert {rules[name] for name in ("default-src", "base-uri", "form-action", "frame-ancestors")} == {none}
    assert {rules[name] for name in ("script-src", "style-src", "connect-src")} == {own}
    assert "unsafe" not in policy
    assert "http" not in policy


def test_an_unchanged_file_is_not_sent_again(codec: ChatCodec) -> None:
    server = Scripted(codec)
    tag = server.get("/web/app.js").headers["etag"]
    again = server.get("/web/app.js", **{"if-none-match": tag})
    assert (again.status, again.body) == (304, b"")
    assert server.get("/web/style.css", **{"if-none-match": tag}).status == 200


def test_heads_of_the_page_can_be_asked_for(codec: ChatCodec) -> None:
    assert run(call(Scripted(codec).app, "HEAD", "/")).status == 200


@pytest.mark.parametrize(
    "path", ["/web/", "/web/none.js", "/web/../app.py", "/web/..%2fapp.py", "/web/__init__.py", "/web/INDEX.HTML"]
)
def test_nothing_else_of_the_disk_can_be_reached(codec: ChatCodec, path: str) -> None:
    reply = Scripted(codec).get(path)
    assert reply.status == 404
    assert reply.json["error"]["code"] == "not_found"


def test_the_page_is_open_where_a_key_is_wanted_and_the_figures_are_not(codec: ChatCodec) -> None:
    server = Scripted(codec, settings=ServerSettings(api_keys=("a-key-of-the-tests",)))
    assert [server.get(path).status for path in ("/", "/web/app.js", "/v1/stats")] == [200, 200, 401]


def test_the_page_is_no_part_of_the_interface_description(codec: ChatCodec) -> None:
    paths = Scripted(codec).get("/openapi.json").json["paths"]
    assert not [path for path in paths if path == "/" or path.startswith("/web")]


def test_the_files_load_nothing_but_each_other() -> None:
    names = set(page_files())
    for name, text in texts().items():
        for found in LOADING.findall(text):
            target = "".join(found).removeprefix("./").removeprefix("web/")
            assert target in names, (name, found)


def test_text_never_becomes_markup() -> None:
    forbidden = re.compile(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|DOMParser")
    assert {name: forbidden.findall(text) for name, text in texts().items() if forbidden.search(text)} == {}
    index = texts()["index.html"]
    assert re.findall(r"<script(?![^>]*\bsrc=)", index) == []
    assert re.findall(r"<style|\sstyle=|\son\w+=", index) == []
