"""The smaller routes: models, tokenize, health, figures, and what is at no path."""

import pytest

from flash41.chat.conversation import ChatCodec
from helpers.serving import CHAT, HELLO, NAME, Scripted, facts


def test_every_name_is_listed_and_described(codec: ChatCodec) -> None:
    scripted = Scripted(codec, model=facts(names=("one", "org/two")))
    assert [entry["id"] for entry in scripted.get("/v1/models").json["data"]] == ["one", "org/two"]
    assert scripted.get("/v1/models/org/two").json["max_model_len"] == 8192
    assert scripted.get("/v1/models/three").status == 404


@pytest.mark.parametrize(("name", "status"), [(NAME, 200), (NAME.lower(), 200), (None, 200), ("gpt-4", 404)])
def test_a_request_names_a_model_that_is_served_or_none(codec: ChatCodec, name: str | None, status: int) -> None:
    reply = Scripted(codec).post(CHAT, {**HELLO, "model": name})
    assert reply.status == status
    if status == 404:
        assert reply.json["error"]["code"] == "model_not_found"


@pytest.mark.parametrize("text", ["hello <think> 你好", ""])
def test_text_becomes_ids_and_ids_become_text(codec: ChatCodec, text: str) -> None:
    scripted = Scripted(codec)
    found = scripted.post("/v1/tokenize", {"text": text}).json
    assert found["tokens"] == codec.tokenizer.encode(text)
    assert found["count"] == len(found["tokens"])
    assert scripted.post("/v1/detokenize", {"tokens": found["tokens"]}).json == {"text": text}


def test_control_tokens_are_spelled_only_where_asked(codec: ChatCodec) -> None:
    scripted = Scripted(codec)
    token = codec.tokenizer.id_of("<think>")
    assert scripted.post("/v1/tokenize", {"text": "<think>", "control": True}).json["tokens"] == [token]
    assert token not in scripted.post("/v1/tokenize", {"text": "<think>"}).json["tokens"]


@pytest.mark.parametrize("body", [{}, {"text": "a", **HELLO}])
def test_tokenize_takes_a_text_or_a_conversation(codec: ChatCodec, body: dict[str, object]) -> None:
    assert Scripted(codec).post("/v1/tokenize", body).status == 400


def test_an_id_that_is_none_is_refused(codec: ChatCodec) -> None:
    assert Scripted(codec).post("/v1/detokenize", {"tokens": [1024]}).status == 400


def test_health_and_readiness_are_two_things(codec: ChatCodec) -> None:
    scripted = Scripted(codec)
    assert scripted.get("/ready").status == 200
    scripted.service.is_ready = False
    assert (scripted.get("/ready").status, scripted.get("/health").status) == (503, 200)
    assert scripted.post(CHAT, HELLO).status == 503


def test_a_server_that_stops_lets_nobody_in(codec: ChatCodec) -> None:
    scripted = Scripted(codec)
    scripted.app.context.gate.close()
    assert scripted.get("/ready").json == {"status": "stopping"}
    reply = scripted.post(CHAT, HELLO)
    assert (reply.status, reply.headers["retry-after"]) == (503, "60")


def test_figures_are_shown_to_prometheus_and_to_people(codec: ChatCodec) -> None:
    scripted = Scripted(codec)
    scripted.post(CHAT, HELLO)
    scripted.get("/nowhere")
    text = scripted.get("/metrics").body.decode()
    assert 'flash41_http_requests_total{route="/v1/chat/completions",status="200"} 1.0' in text
    assert 'flash41_http_requests_total{route="other",status="404"} 1.0' in text
    assert "flash41_engine_requests_running 0.0" in text
    assert "flash41_open_answers 0.0" in text
    stats = scripted.get("/v1/stats").json
    assert (stats["open_answers"], stats["engine"]["num_finished"]) == (0, 1)


def test_approximate_answers_are_labelled(codec: ChatCodec) -> None:
    scripted = Scripted(codec, model=facts(approximate=("decoder-replay", "prefix-replay")))
    for stream in (False, True):
        reply = scripted.post(CHAT, {**HELLO, "stream": stream})
        assert reply.headers["x-approximate"] == "decoder-replay, prefix-replay"
    assert scripted.get("/v1/stats").json["approximate"] == ["decoder-replay", "prefix-replay"]
    assert "x-approximate" not in Scripted(codec).post(CHAT, HELLO).headers


@pytest.mark.parametrize(("method_path", "status"), [("/nowhere", 404), (CHAT, 405)])
def test_what_is_not_there_is_told_in_the_usual_shape(codec: ChatCodec, method_path: str, status: int) -> None:
    reply = Scripted(codec).get(method_path)
    assert reply.status == status
    assert reply.json["error"]["type"]


def test_the_interface_is_described(codec: ChatCodec) -> None:
    paths = Scripted(codec).get("/openapi.json").json["paths"]
    assert {CHAT, "/v1/completions", "/v1/responses", "/v1/messages", "/v1/messages/count_tokens"} <= set(paths)
    schema = paths[CHAT]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert schema["properties"]["n"]["anyOf"][0]["maximum"] == 8
