"""What a tokenizer becomes when a request asks for it."""

import json
from pathlib import Path

import pytest

from flash41.chat.conversation import Conversation, Message
from flash41.chat.tokenizer import Tokenizer
from flash41.config.architecture import ModelConfig
from flash41.config.huggingface import config_from_dict
from flash41.engine.request import SamplingParams
from flash41.engine.words import Words
from flash41.errors import ConfigError, RequestError
from helpers.tiny_tokenizer import TINY_TOKENIZER

FORMAT = {"type": "json_object"}


@pytest.fixture(scope="module")
def config(tiny_directory: Path) -> ModelConfig:
    return config_from_dict(json.loads((tiny_directory / "config.json").read_text()))


@pytest.fixture(scope="module")
def words(config: ModelConfig) -> Words:
    return Words(Tokenizer.from_file(TINY_TOKENIZER / "tokenizer.json"), config)


def asked(words: Words, **wishes: object) -> Conversation:
    return words.codec.conversation([Message(role="user", content="hi, json")], thinking=False, **wishes)  # type: ignore[arg-type]


def test_the_codec_is_made_once(words: Words) -> None:
    assert words.codec is words.codec


def test_raw_text_needs_no_control_token_and_a_conversation_names_those_it_lacks(
    config: ModelConfig, tmp_path: Path
) -> None:
    document = json.loads((TINY_TOKENIZER / "tokenizer.json").read_text())
    for token in document["added_tokens"]:
        token["content"] = token["content"].replace("</think>", "</thought>")
    (tmp_path / "tokenizer.json").write_text(json.dumps(document))
    lacking = Words(Tokenizer.from_file(tmp_path / "tokenizer.json"), config)
    watcher = lacking.text_watcher(SamplingParams(), ())
    assert not watcher.push(300)
    with pytest.raises(ConfigError, match="no token </think>"):
        _ = lacking.codec


@pytest.mark.parametrize("ignored", [False, True])
def test_eos_is_text_only_where_it_does_not_end_the_answer(words: Words, config: ModelConfig, ignored: bool) -> None:
    params, eos = SamplingParams(ignore_eos=ignored), config.tokens.eos
    watcher = words.text_watcher(params, ())
    watcher.push(eos)
    marker = words.codec.tokenizer.token_text(eos)
    assert watcher.finish() == (marker if ignored else "")
    parsing = words.chat_watcher(params, asked(words))
    parsing.push(eos)
    assert parsing.finish("stop").content == (marker if ignored else "")


def test_only_what_is_asked_of_an_answer_is_held(words: Words) -> None:
    assert words.constraint(SamplingParams(), asked(words)) is None
    assert words.constraint(SamplingParams(ignore_eos=True), asked(words)) is None
    assert words.constraint(SamplingParams(), asked(words, response_format=FORMAT)) is not None


def test_an_answer_that_is_held_cannot_go_on_behind_eos(words: Words) -> None:
    message = r"^ignore_eos with response_format, .*: got True, expected False \(such an answer ends with EOS\)$"
    with pytest.raises(RequestError, match=message):
        words.constraint(SamplingParams(ignore_eos=True), asked(words, response_format=FORMAT))
