import json
import runpy
from pathlib import Path
from typing import Any

import pytest

from flash41.chat.conversation import ChatCodec, Message
from flash41.chat.tokenizer import Tokenizer
from helpers.tiny_tokenizer import TINY_IMAGE_ID, TINY_TOKENIZER

SCRIPT = Path(__file__).resolve().parents[3] / "scripts" / "train_tiny_tokenizer.py"
NAMES = ["tokenizer.json", "tokenizer_config.json"]
TOKENIZER = Tokenizer.from_file(TINY_TOKENIZER / "tokenizer.json")


def read(name: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((TINY_TOKENIZER / name).read_text(encoding="utf-8"))
    return document


def test_the_script_writes_the_shipped_files() -> None:
    files = runpy.run_path(str(SCRIPT))["files"]()
    assert sorted(files) == NAMES
    for name in NAMES:
        assert files[name] == (TINY_TOKENIZER / name).read_text(encoding="utf-8"), name


def test_the_ids_are_1024_without_a_gap() -> None:
    document = read("tokenizer.json")
    ids = {**document["model"]["vocab"], **{token["content"]: token["id"] for token in document["added_tokens"]}}
    assert sorted(ids.values()) == list(range(1024))
    assert TOKENIZER.vocab_size == 1024


def test_every_byte_is_an_id() -> None:
    single = {TOKENIZER.token_bytes(token_id) for token_id in range(3, 259)}
    assert single == {bytes([byte]) for byte in range(256)}


def test_every_id_writes_something_of_its_own() -> None:
    written = [TOKENIZER.token_bytes(token_id) for token_id in range(1024)]
    assert all(written)
    assert len(set(written)) == 1024


def test_the_pipeline_is_that_of_the_release() -> None:
    release = json.loads((Path(__file__).parents[2] / "data/chat/release_pipeline.json").read_text(encoding="utf-8"))
    document = read("tokenizer.json")
    assert {key: document[key] for key in release["pipeline"]} == release["pipeline"]
    for token in document["added_tokens"]:
        assert [token["normalized"], token["special"]] == release["flags"][token["content"]], token["content"]
    assert len(document["added_tokens"]) == len(release["flags"]) == 28


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("bos_token", "<｜begin▁of▁sentence｜>"),
        ("eos_token", "<｜end▁of▁sentence｜>"),
        ("add_bos_token", False),
        ("model_max_length", 1_048_576),
    ],
)
def test_the_configuration_names_what_the_release_names(key: str, value: object) -> None:
    assert read("tokenizer_config.json")[key] == value


def test_a_greeting_costs_few_ids() -> None:
    codec = ChatCodec.from_directory(TINY_TOKENIZER, TINY_IMAGE_ID)
    hello = [Message(role="user", content="hello")]
    assert len(codec.encode(codec.conversation(hello, thinking=False)).ids) == 5
    assert len(codec.encode(codec.conversation(hello)).ids) <= 32
    tool = {"type": "function", "function": {"name": "f"}}
    assert len(codec.encode(codec.conversation(hello, tools=[tool])).ids) <= 400
