import json
import logging

import pytest

from flash41.chat.conversation import ChatCodec
from flash41.server.logs import FIELDS, handler
from helpers.serving import CHAT, HELLO, Scripted


def record(message: str, **fields: object) -> logging.LogRecord:
    made = logging.LogRecord("flash41.x", logging.INFO, "", 0, message, (), None)
    setattr(made, FIELDS, fields)
    return made


def test_a_json_line_is_one_object_whatever_is_in_it() -> None:
    line = handler(as_json=True).format(record('a "line"\nbreak', path="/x\n", status=200))
    assert "\n" not in line
    found = json.loads(line)
    assert (found["message"], found["path"], found["status"], found["level"]) == (
        'a "line"\nbreak',
        "/x\n",
        200,
        "info",
    )
    assert found["time"].endswith("Z")


def test_a_line_for_people_names_its_facts() -> None:
    assert handler(as_json=False).format(record("request", status=200)).endswith("info request status=200")


def test_a_request_is_one_line_with_its_counts(codec: ChatCodec, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    scripted = Scripted(codec)
    reply = scripted.post(CHAT, {**HELLO, "stream": True, "seed": 4})
    (entry,) = [record for record in caplog.records if record.name == "flash41.server.access"]
    fields = getattr(entry, FIELDS)
    assert fields["request_id"] == reply.headers["x-request-id"]
    assert (fields["method"], fields["path"], fields["status"], fields["seed"]) == ("POST", CHAT, 200, 4)
    assert fields["prompt_tokens"] == len(scripted.service.jobs[0].prompt_ids)
    assert fields["output_tokens"] == reply.chunks[-1]["usage"]["completion_tokens"]


def test_a_path_cannot_break_a_line(codec: ChatCodec, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    Scripted(codec).get("/v1/" + "é" * 500)
    text = handler(as_json=False).format(caplog.records[-1])
    assert text.isascii()
    assert len(text) < 1500
