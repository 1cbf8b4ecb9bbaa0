"""Pictures in bodies of all protocols: decoded beside the loop, limited, counted; refused with a kind and a place."""

import asyncio
import base64
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flash41.chat.conversation import ChatCodec
from flash41.chat.images import picture
from flash41.server import pictures as desk
from flash41.server.fetching import FetchError
from flash41.server.settings import ServerSettings
from helpers.image_files import SMALL_SIZES, encoded, pattern, png
from helpers.serving import CHAT, MESSAGES, RESPONSES, Reply, Scripted, facts, run

PNG, OTHER = encoded(pattern(60, 45)), encoded(pattern(200, 50), "WEBP", lossless=True)
COSTS = (10, 14)
URL = f"data:image/png;base64,{base64.b64encode(PNG).decode()}"
REMOTE = "https://example.org/a.png"


def url(data: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(data).decode()}"


def chat_part(address: str, **values: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": address, **values}}


def chat_body(*parts: dict[str, Any], **values: Any) -> dict[str, Any]:
    content = [{"type": "text", "text": "What is this?"}, *parts]
    return {"messages": [{"role": "user", "content": content}], **values}


def served(codec: ChatCodec, settings: ServerSettings | None = None, **changes: Any) -> Scripted:
    image = codec.tokenizer.id_of("<｜deepseek_image｜>")
    model = facts(**{"image_sizes": SMALL_SIZES, "image_token_id": image, **changes})
    return Scripted(codec, settings=settings or ServerSettings(), model=model)


def fault(reply: Reply) -> tuple[int, str, str | None]:
    return reply.status, reply.json["error"]["code"], reply.json["error"]["param"]


BODIES: dict[str, dict[str, Any]] = {
    CHAT: chat_body(chat_part(URL), chat_part(url(OTHER))),
    RESPONSES: {
        "input": [
            {
                "role": "user",
                "content": [
                    {"type": "input_text", "text": "What is this?"},
                    {"type": "input_image", "image_url": URL},
                    {"type": "input_image", "image_url": url(OTHER)},
                ],
            }
        ]
    },
    MESSAGES: {
        "max_tokens": 9,
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "What is this?"},
                    *(
                        {
                            "type": "image",
                            "source": {"type": "base64", "media_type": kind, "data": base64.b64encode(data).decode()},
                        }
                        for kind, data in (("image/png", PNG), ("image/webp", OTHER))
                    ),
                ],
            }
        ],
    },
}


class TestProtocols:
    @pytest.mark.parametrize("path", BODIES)
    def test_pictures_travel_with_the_job_and_count_in_usage(self, codec: ChatCodec, path: str) -> None:
        server = served(codec)
        reply = server.post(path, BODIES[path])
        assert reply.status == 200, reply.body
        (job,) = server.service.jobs
        expected = [picture(data, SMALL_SIZES).identity for data in (PNG, OTHER)]
        assert [one.identity for one in job.pictures] == expected
        assert job.prompt_ids.count(server.model.image_token_id or -1) == 2
        name = "prompt_tokens" if path == CHAT else "input_tokens"
        assert reply.json["usage"][name] == len(job.prompt_ids) + sum(COSTS) - 2

    def test_streams_take_pictures_too(self, codec: ChatCodec) -> None:
        reply = served(codec).post(CHAT, {**BODIES[CHAT], "stream": True})
        plain = served(codec).post(CHAT, {**chat_body(), "stream": True})
        tokens = [answer.chunks[-1]["usage"]["prompt_tokens"] for answer in (reply, plain)]
        assert tokens[0] > tokens[1] + sum(COSTS)

    def test_prompts_with_pictures_are_counted_and_shown(self, codec: ChatCodec) -> None:
        server = served(codec)
        job_tokens = server.post(CHAT, BODIES[CHAT]).json["usage"]["prompt_tokens"]
        tokens = server.post("/v1/tokenize", BODIES[CHAT]).json
        assert tokens["count"] == job_tokens
        assert tokens["tokens"].count(server.model.image_token_id) == sum(COSTS)
        counted = server.post("/v1/messages/count_tokens", BODIES[MESSAGES]).json["input_tokens"]
        assert counted == server.post(MESSAGES, BODIES[MESSAGES]).json["usage"]["input_tokens"]

    def test_what_holds_an_answer_travels_without_pixels(self, codec: ChatCodec) -> None:
        server = served(codec)
        assert server.post(CHAT, {**BODIES[CHAT], "stop": ["."]}).status == 200
        (job,) = server.service.jobs
        assert job.conversation is not None
        assert URL not in str(job.conversation.body)
        assert len(job.pictures) == 2

    def test_choices_share_their_pictures(self, codec: ChatCodec) -> None:
        server = served(codec)
        server.post(CHAT, {**BODIES[CHAT], "n": 3})
        first, *others = server.service.jobs
        assert len(others) == 2
        assert all(job.pictures == first.pictures for job in others)

    def test_low_detail_is_another_picture(self, codec: ChatCodec) -> None:
        server = served(codec)
        large = url(encoded(pattern(1100, 90)))
        server.post(CHAT, chat_body(chat_part(large), chat_part(large, detail="low")))
        high, low = server.service.jobs[0].pictures
        assert high.identity != low.identity

    def test_a_picture_in_the_result_of_a_tool_is_shown(self, codec: ChatCodec) -> None:
        server = served(codec)
        image = BODIES[MESSAGES]["messages"][0]["content"][1]
        body = {
            "max_tokens": 9,
            "messages": [
                {"role": "user", "content": "look"},
                {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {}}]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": [image]}]},
            ],
        }
        assert server.post(MESSAGES, body).status == 200
        assert len(server.service.jobs[0].pictures) == 1

    def test_a_server_without_an_encoder_says_so(self, codec: ChatCodec) -> None:
        reply = Scripted(codec).post(CHAT, BODIES[CHAT])
        assert fault(reply)[:2] == (400, "UnsupportedMediaType")


class TestRefusals:
    @pytest.mark.parametrize(
        ("data", "code"),
        [
            (b"", "EmptyImage"),
            (png(0, 5), "EmptyImage"),
            (PNG[:60], "Decode"),
            (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "UnsupportedMediaType"),
            (b"BM" + bytes(60), "UnsupportedMediaType"),
            (png(1, 100_000), "ImageDimensionsTooLarge"),
            (png(9_000, 9_000), "ImageDimensionsTooLarge"),
            (b"\x89PNG\r\n\x1a\n" + bytes(40), "Decode"),
        ],
    )
    def test_a_broken_picture_is_refused_with_its_kind_and_its_place(
        self, codec: ChatCodec, data: bytes, code: str
    ) -> None:
        server = served(codec)
        reply = server.post(CHAT, chat_body(chat_part(URL), chat_part(url(data))))
        assert fault(reply) == (400, code, "messages[0]")
        assert "image 2 (messages[0])" in reply.json["error"]["message"]
        assert server.service.jobs == []

    def test_other_protocols_tell_it_in_their_own_shape(self, codec: ChatCodec) -> None:
        part = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
        reply = served(codec).post(MESSAGES, {"max_tokens": 5, "messages": [{"role": "user", "content": [part]}]})
        assert (reply.status, reply.json["error"]["type"]) == (400, "invalid_request_error")
        assert reply.json["error"]["message"].startswith("image 1 (messages.0.content[0]): ")

    def test_there_are_no_more_than_six_hundred_images(self, codec: ChatCodec) -> None:
        reply = served(codec).post(CHAT, chat_body(*[chat_part(URL)] * 601))
        assert fault(reply)[:2] == (400, "TooManyImages")

    def test_pictures_beyond_the_longest_request_are_not_even_decoded(self, codec: ChatCodec) -> None:
        server = served(codec, max_model_len=64)
        bad = [chat_part(url(PNG[:60]))] * 50  # never reached
        sizes = [chat_part(url(encoded(pattern(60, 45 + number)))) for number in range(6)]
        reply = server.post(CHAT, chat_body(*sizes, *bad))
        assert fault(reply)[:2] == (400, "context_length_exceeded")

    @settings(max_examples=20, deadline=None)
    @given(data=st.data())
    def test_no_file_whatever_makes_the_server_fail(self, codec: ChatCodec, data: st.DataObject) -> None:
        forms: list[dict[str, Any]] = [
            {"form": "PNG"},
            {"form": "JPEG", "progressive": True},
            {"form": "GIF"},
            {"form": "WEBP", "lossless": True},
        ]
        file = bytearray(encoded(pattern(20, 15), **data.draw(st.sampled_from(forms))))
        for _ in range(data.draw(st.integers(1, 4))):
            at = data.draw(st.integers(0, len(file) - 1))
            file[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
        reply = served(codec).post(CHAT, chat_body(chat_part(url(bytes(file)))))
        assert reply.status in (200, 400)
        assert reply.status == 200 or reply.json["error"]["param"] == "messages[0]"


class TestLocalFiles:
    @pytest.fixture
    def root(self, tmp_path: Path) -> Path:
        root = tmp_path / "root"
        (root / "in").mkdir(parents=True)
        (root / "in" / "a cat.png").write_bytes(PNG)
        (tmp_path / "secret.png").write_bytes(PNG)
        (root / "out.png").symlink_to(tmp_path / "secret.png")
        (root / "within.png").symlink_to(root / "in" / "a cat.png")
        return root

    def test_files_below_the_root_are_read(self, codec: ChatCodec, root: Path) -> None:
        server = served(codec, ServerSettings(image_root=root))
        for name in ("in/a%20cat.png", "within.png", "in/../within.png"):
            for host in ("", "localhost"):
                reply = server.post(CHAT, chat_body(chat_part(f"file://{host}{root}/{name}")))
                assert reply.status == 200, reply.body
        part = {"type": "image", "source": {"type": "url", "url": f"file://{root}/within.png"}}
        body = {"max_tokens": 5, "messages": [{"role": "user", "content": [part]}]}
        assert server.post(MESSAGES, body).status == 200
        item = {"type": "input_image", "image_url": f"file://{root}/within.png"}
        assert server.post(RESPONSES, {"input": [{"role": "user", "content": [item]}]}).status == 200
        assert {len(job.pictures) for job in server.service.jobs} == {1}

    def test_whatever_lies_outside_is_refused_alike(self, codec: ChatCodec, root: Path) -> None:
        server = served(codec, ServerSettings(image_root=root))
        found = set()
        for name in ("out.png", "../secret.png", "%2e%2e/secret.png", "missing.png", "in", "a%00b.png"):
            reply = server.post(CHAT, chat_body(chat_part(f"file://{root}/{name}")))
            found.add((*fault(reply), reply.json["error"]["message"]))
        assert len(found) == 1
        assert found.pop()[0] == 400

    def test_a_file_of_another_host_is_no_local_file(self, codec: ChatCodec, root: Path) -> None:
        reply = served(codec, ServerSettings(image_root=root)).post(CHAT, chat_body(chat_part("file://other/a.png")))
        assert reply.status == 400

    @pytest.mark.parametrize("address", ["file://{}/within.png", "https://local-file.invalid{}/within.png"])
    def test_without_a_root_no_file_is_read(self, codec: ChatCodec, root: Path, address: str) -> None:
        reply = served(codec).post(CHAT, chat_body(chat_part(address.format(root))))
        assert reply.status == 400


class TestOtherServers:
    def test_nothing_is_fetched_unless_allowed(self, codec: ChatCodec) -> None:
        reply = served(codec).post(CHAT, chat_body(chat_part(REMOTE)))
        assert reply.status == 400
        assert "image 1 (messages[0]): image address" in reply.json["error"]["message"]

    def test_an_address_is_fetched_once_and_shown(self, codec: ChatCodec, monkeypatch: pytest.MonkeyPatch) -> None:
        asked = []
        monkeypatch.setattr(desk, "fetch", lambda address, _: asked.append(address) or PNG)
        server = served(codec, ServerSettings(image_http=True))
        assert server.post(CHAT, chat_body(chat_part(REMOTE), chat_part(URL), chat_part(REMOTE))).status == 200
        assert asked == [REMOTE]
        assert {one.identity for one in server.service.jobs[0].pictures} == {picture(PNG, SMALL_SIZES).identity}

    @pytest.mark.parametrize(("is_retryable", "status"), [(True, 500), (False, 400)])
    def test_what_cannot_be_fetched_is_told_with_its_place(
        self, codec: ChatCodec, monkeypatch: pytest.MonkeyPatch, is_retryable: bool, status: int
    ) -> None:
        def failing(*_: object) -> bytes:
            raise FetchError("status 404", "status 200", is_retryable=is_retryable)

        monkeypatch.setattr(desk, "fetch", failing)
        reply = served(codec, ServerSettings(image_http=True)).post(CHAT, chat_body(chat_part(REMOTE)))
        assert fault(reply) == (status, "image_fetch_failed", "messages[0]")

    def test_this_machine_is_never_asked(self, codec: ChatCodec) -> None:
        server = served(codec, ServerSettings(image_http=True))
        for host in ("127.0.0.1:9", "localhost:9", "[::1]:9", "169.254.169.254", "10.0.0.1", "2130706433:9"):
            reply = server.post(CHAT, chat_body(chat_part(f"http://{host}/a.png")))
            assert fault(reply) == (400, "image_fetch_failed", "messages[0]"), reply.body
            assert "not public" in reply.json["error"]["message"]

    def test_a_resolver_that_sits_keeps_nobody_waiting(self, codec: ChatCodec, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(desk, "fetch", lambda *_: time.sleep(0.5) or PNG)
        server = served(codec, ServerSettings(image_http=True, image_fetch_seconds=0.05))
        reply = server.post(CHAT, chat_body(chat_part(REMOTE)))
        assert fault(reply)[:2] == (500, "image_fetch_failed")


class TestLoad:
    def test_texts_are_answered_while_a_picture_is_decoded(
        self, codec: ChatCodec, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def slow(*_: object) -> Iterator[object]:
            time.sleep(0.5)
            yield picture(PNG, SMALL_SIZES)

        monkeypatch.setattr(desk, "pictures_of", slow)
        server, ended = served(codec), list[str]()

        async def asked(name: str, body: dict[str, Any]) -> None:
            assert (await server.apost(CHAT, body)).status == 200
            ended.append(name)

        async def both() -> None:
            await asyncio.gather(asked("picture", chat_body(chat_part(URL))), asked("text", chat_body()))

        run(both())
        assert ended == ["text", "picture"]

    def test_patches_of_open_answers_are_counted_and_given_back(self, codec: ChatCodec) -> None:
        size = picture(PNG, SMALL_SIZES).patches.nbytes
        server = served(codec, ServerSettings(max_picture_bytes=2 * size))
        server.service._token_seconds = 0.02
        other = chat_part(url(encoded(pattern(60, 44))))

        async def three() -> list[Reply]:
            bodies = [chat_body(chat_part(URL), chat_part(URL)), chat_body(other), chat_body(chat_part(URL))]
            return list(await asyncio.gather(*(server.apost(CHAT, body) for body in bodies)))

        statuses = [reply.status for reply in run(three())]
        assert sorted(statuses) == [200, 200, 429]
        assert server.app.context.pictures.num_held_bytes == 0
        assert server.post(CHAT, chat_body(chat_part(URL))).status == 200

    def test_what_a_refused_call_held_is_given_back(self, codec: ChatCodec) -> None:
        server = served(codec)
        server.post(CHAT, chat_body(chat_part(URL), chat_part(url(PNG[:60]))))
        server.post("/v1/tokenize", BODIES[CHAT])
        assert server.app.context.pictures.num_held_bytes == 0
