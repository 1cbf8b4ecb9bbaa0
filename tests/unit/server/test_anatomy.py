"""The numbers of the anatomy tab: those of the command, for whoever may ask."""

import json

from flash41.chat.conversation import ChatCodec
from flash41.server.settings import ServerSettings
from flash41.tools.anatomy import dissect
from flash41.tools.anatomy_page.document import page_document
from helpers.config_documents import tiny_config
from helpers.serving import NAME, Scripted

PATH = "/v1/anatomy"


def test_the_served_model_is_described_under_its_name(codec: ChatCodec) -> None:
    server = Scripted(codec, settings=ServerSettings(model_config=tiny_config()))
    reply = server.get(PATH)
    assert (reply.status, reply.headers["content-type"]) == (200, "application/json")
    assert reply.json == json.loads(json.dumps(page_document(dissect(tiny_config()), NAME)))
    assert server.get(PATH).body == reply.body


def test_a_model_that_is_not_known_is_a_404(codec: ChatCodec) -> None:
    reply = Scripted(codec).get(PATH)
    assert (reply.status, reply.json["error"]["code"]) == (404, "not_found")


def test_the_numbers_want_the_key(codec: ChatCodec) -> None:
    settings = ServerSettings(api_keys=("a-key-of-the-tests",), model_config=tiny_config())
    server = Scripted(codec, settings=settings)
    assert server.get(PATH).status == 401
    assert server.get(PATH, authorization="Bearer a-key-of-the-tests").status == 200


def test_it_is_a_matter_of_the_page(codec: ChatCodec) -> None:
    assert PATH not in Scripted(codec).get("/openapi.json").json["paths"]
