import json
from random import Random

import pytest

from flash41.chat.conversation import ChatCodec
from flash41.chat.tokenizer import Tokenizer
from flash41.checkpoint.embedded import tiny_tokenizer_files
from flash41.engram.vocabulary import TokenMap
from training.corpus import tools
from training.corpus.render import body
from training.tokenizer import CONFIG, FOLDER, files, fitted, shipped_config, shipped_files, train


@pytest.fixture(scope="module")
def small() -> dict[str, bytes]:
    return files(train(num_base=300, num_samples=60))


def test_the_same_corpus_gives_the_same_file(small: dict[str, bytes]) -> None:
    assert files(train(num_base=300, num_samples=60)) == small


def test_every_control_token_of_the_release_is_there_in_the_releases_order(small: dict[str, bytes]) -> None:
    ours, theirs = (
        [(token["content"], token["special"]) for token in json.loads(document["tokenizer.json"])["added_tokens"]]
        for document in (small, tiny_tokenizer_files())
    )
    assert ours == theirs
    ids = [token["id"] for token in json.loads(small["tokenizer.json"])["added_tokens"]]
    assert ids[:3] == [0, 1, 2]
    assert ids[3:] == list(range(300, 300 + len(ids) - 3))


def test_the_shipped_files_fit_the_shipped_configuration() -> None:
    config = shipped_config()
    assert set(shipped_files()) == {"tokenizer.json", "tokenizer_config.json"}
    document = json.loads(CONFIG.read_text(encoding="utf-8"))
    assert fitted(document, FOLDER) == document
    assert TokenMap.from_tokenizer(FOLDER / "tokenizer.json", config).num_classes == config.engram.compressed_vocab_size
    assert ChatCodec(Tokenizer.from_file(FOLDER / "tokenizer.json"), config.tokens.image).tokenizer.vocab_size < 2048


def test_numbers_are_spelled_digit_by_digit_and_any_text_can_be_written() -> None:
    tokenizer = Tokenizer.from_file(FOLDER / "tokenizer.json")
    assert [tokenizer.token_text(token) for token in tokenizer.encode("407")] == ["4", "0", "7"]
    text = "Grüße, 世界! <think> \x00 ✓"
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_rendered_preambles_are_short() -> None:
    tokenizer = Tokenizer.from_file(FOLDER / "tokenizer.json")
    codec = ChatCodec(tokenizer, shipped_config().tokens.image)
    prompt = codec.encode(codec.convert(body(tools.sample(Random(1), 0))))
    assert len(prompt.ids) < len(prompt.text) / 3.5
