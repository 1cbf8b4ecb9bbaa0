import logging
from pathlib import Path

import pytest

from flash41.chat.conversation import ChatCodec
from flash41.errors import ConfigError
from flash41.server.logs import handler
from flash41.server.security import LARGEST_HEAD_BYTES, Guard, read_keys
from flash41.server.service import Generation, Job
from flash41.server.settings import ServerSettings
from helpers.serving import CHAT, HELLO, Scripted

FIRST, SECOND = "first-key-0123456789", "second-key-0123456789"


@pytest.mark.parametrize(
    "host", ["localhost", "localhost:8000", "127.0.0.1:8000", "[::1]:8000", "192.168.1.7", "LOCALHOST.", "box.lan:80"]
)
def test_names_and_addresses_of_the_server_are_answered(codec: ChatCodec, host: str) -> None:
    scripted = Scripted(codec, settings=ServerSettings(allowed_hosts=("box.lan",)))
    assert scripted.get("/health", host=host).status == 200


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "127.0.0.1.nip.io:8000", "", "[", "a b"])
def test_a_name_that_was_rebound_to_this_machine_is_refused(codec: ChatCodec, host: str) -> None:
    assert Scripted(codec).get("/health", host=host).status == 403


@pytest.mark.parametrize("path", ["/", "/health", CHAT])
def test_a_long_head_is_refused_wherever_it_goes(codec: ChatCodec, path: str) -> None:
    scripted = Scripted(codec)
    found = scripted.get(path, cookie="a" * LARGEST_HEAD_BYTES)
    assert found.status == 431
    assert scripted.get("/health?" + "a" * LARGEST_HEAD_BYTES).status == 431
    assert scripted.get("/health", cookie="a" * (LARGEST_HEAD_BYTES - 200)).status == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": f"Bearer {FIRST}"},
        {"authorization": f"bearer  {SECOND}"},
        {"x-api-key": FIRST},
    ],
)
def test_any_of_the_keys_opens(codec: ChatCodec, headers: dict[str, str]) -> None:
    scripted = Scripted(codec, settings=ServerSettings(api_keys=(FIRST, SECOND)))
    assert scripted.post(CHAT, HELLO, **headers).status == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer "},
        {"authorization": FIRST},
        {"authorization": f"Basic {FIRST}"},
        {"x-api-key": FIRST[:-1]},
        {"x-api-key": FIRST + " "},
        {"x-api-key": "\xff" * 20},
    ],
)
@pytest.mark.parametrize("path", [CHAT, "/v1/models", "/metrics", "/openapi.json", "/nowhere", "/v1/stats"])
def test_without_a_right_key_only_health_is_shown(codec: ChatCodec, headers: dict[str, str], path: str) -> None:
    scripted = Scripted(codec, settings=ServerSettings(api_keys=(FIRST,)))
    reply = scripted.post(path, HELLO, **headers)
    assert reply.status == 401
    assert reply.headers["www-authenticate"] == "Bearer"
    assert FIRST[:-1] not in reply.body.decode()
    assert [scripted.get(path).status for path in ("/health", "/ready")] == [200, 200]


def test_an_error_for_a_client_of_messages_has_its_shape(codec: ChatCodec) -> None:
    reply = Scripted(codec, settings=ServerSettings(api_keys=(FIRST,))).post("/v1/messages", HELLO)
    assert reply.json["error"]["type"] == "authentication_error"
    assert reply.json["request_id"] == reply.headers["x-request-id"]


def test_several_keys_share_no_cached_prefix(codec: ChatCodec) -> None:
    scripted = Scripted(codec, settings=ServerSettings(api_keys=(FIRST, SECOND)))
    for key in (FIRST, SECOND, FIRST):
        scripted.post(CHAT, HELLO, **{"x-api-key": key})
    first, second, again = (job.salt for job in scripted.service.jobs)
    assert first == again != second
    assert first
    assert Guard(ServerSettings(api_keys=(FIRST,))).salt("/", {"x-api-key": FIRST}) == b""


def test_a_key_file_has_a_key_per_line(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(f"# ours\n\n{FIRST}\n  {SECOND}\n")
    assert read_keys(path) == (FIRST, SECOND)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("# none\n", "at least one"),
        ("short\n", "line 1"),
        (f"{FIRST}\nwith a space in it\n", "line 2"),
        ("é" * 20, "ASCII"),
    ],
)
def test_a_key_file_that_cannot_be_meant_is_refused(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "keys"
    path.write_text(text)
    with pytest.raises(ConfigError, match=words) as caught:
        read_keys(path)
    assert "short" not in str(caught.value)


def test_browsers_are_told_to_load_and_frame_nothing(codec: ChatCodec) -> None:
    headers = Scripted(codec).get("/v1/models").headers
    assert "default-src 'none'" in headers["content-security-policy"]
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"


def test_no_origin_may_call_unless_it_is_named(codec: ChatCodec) -> None:
    origin = "https://app.example"
    closed = Scripted(codec).get("/v1/models", origin=origin)
    assert "access-control-allow-origin" not in closed.headers
    opened = Scripted(codec, settings=ServerSettings(allowed_origins=(origin,)))
    assert opened.get("/v1/models", origin=origin).headers["access-control-allow-origin"] == origin
    assert "access-control-allow-origin" not in opened.get("/v1/models", origin="https://other.example").headers


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
def test_only_json_is_read(codec: ChatCodec, kind: str) -> None:
    assert Scripted(codec).post(CHAT, HELLO, **{"content-type": kind}).status == 415
    assert Scripted(codec).post(CHAT, HELLO, **{"content-type": "Application/JSON; charset=utf-8"}).status == 200


@pytest.mark.parametrize(("given", "kept"), [("abc-1.2_x", True), ("x" * 65, False), ("a\nb", False), ("<b>", False)])
def test_a_request_id_is_kept_if_it_is_harmless(codec: ChatCodec, given: str, kept: bool) -> None:
    reply = Scripted(codec).get("/health", **{"x-request-id": given})
    assert (reply.headers["x-request-id"] == given) is kept


def test_no_word_of_a_prompt_or_key_is_logged_or_told(
    codec: ChatCodec, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.DEBUG)
    secret = "zebra-in-the-kitchen"
    scripted = Scripted(codec, f"{secret}</think>{secret}", ServerSettings(api_keys=(FIRST,)))
    key = {"x-api-key": FIRST}
    bodies = [
        {"messages": [{"role": "user", "content": secret}], "stop": [secret]},
        {"messages": secret},
        {"messages": [secret]},
        {"messages": [{"role": secret, "content": secret}]},
        {"messages": [{"role": "user", "content": {"text": secret}}]},
        {"messages": [{"role": "user", "content": [{"type": secret, "text": secret}]}]},
        {"messages": [{"role": "user", "content": secret}], "temperature": secret},
        {"messages": [{"role": "user", "content": secret}], "tools": [{"type": "function", "function": secret}]},
        {"messages": [{"role": "user", "content": secret}], "reasoning_effort": secret},
        {"messages": [{"role": "user", "content": secret}], "reasoning_effort": {"a": secret}},
        {"messages": [{"role": "user", "content": secret}], "logit_bias": {secret: 1}},
        {"messages": [{"role": "user", "content": secret}], "output_config": {"effort": [secret]}},
        {"input": secret, "reasoning": {"effort": {"a": secret}}},
        {"prompt": [secret, 5]},
        {"text": "\ud800" + secret},
        f'{{"messages": "{secret}'.encode(),
    ]
    for path in (CHAT, "/v1/messages", "/v1/responses", "/v1/completions", "/v1/tokenize"):
        for body in bodies:
            reply = scripted.post(path, body, **key)
            assert reply.status < 500, (path, body)
            if reply.status != 200:
                assert secret not in reply.body.decode(), (path, body)

    def broken(job: Job) -> Generation:
        raise RuntimeError(f"cannot compute {secret} of {len(job.prompt_ids)} tokens")

    monkeypatch.setattr(scripted.service, "submit", broken)
    assert scripted.post(CHAT, bodies[0], **key).status == 500
    formatters = [handler(as_json=True), handler(as_json=False)]
    text = "\n".join(formatter.format(record) for formatter in formatters for record in caplog.records)
    assert "RuntimeError" in text
    assert "request" in text
    assert secret not in text
    assert FIRST not in text
