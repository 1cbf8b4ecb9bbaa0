"""The conversations in the package are those the corpus makes, and they are what they are said to be."""

import gzip
import io
import json
from typing import Any

import pytest
from PIL import Image

from flash41.chat.conversation import ChatCodec
from flash41.chat.image_sources import data_url_bytes
from flash41.chat.tokenizer import Tokenizer
from flash41.config.huggingface import config_from_dict
from flash41.errors import ConfigError
from flash41.tools.canary.conversations import parsed_set
from flash41.tools.canary.spelling import spelled
from training import canary_set
from training.canary_set import LIMIT, SEED, TARGET, TRAITS, document, line, lines
from training.corpus.mixture import FAMILIES, HELD_OUT, TRAINING, Mixture, sample
from training.corpus.render import Renderer, calls_text
from training.tokenizer import CONFIG, FOLDER, shipped_config

URL = "data:image/png;base64,"


@pytest.fixture(scope="module")
def made() -> list[str]:
    return list(lines())


@pytest.fixture(scope="module")
def renderer() -> Renderer:
    config = shipped_config()
    return Renderer(ChatCodec(Tokenizer.from_file(FOLDER / "tokenizer.json"), config.tokens.image), config)


def unpacked(value: Any) -> Any:
    """With pixels in the place of files, which libraries pack differently."""
    if isinstance(value, dict):
        return {key: unpacked(one) for key, one in value.items()}
    if isinstance(value, list):
        return [unpacked(one) for one in value]
    if isinstance(value, str) and value.startswith(URL):
        return Image.open(io.BytesIO(data_url_bytes(value))).convert("RGB").tobytes()
    return value


def test_the_file_of_the_package_is_what_the_corpus_makes(made: list[str]) -> None:
    packed = TARGET.read_bytes()
    assert len(packed) < 300_000
    kept = gzip.decompress(packed).decode().splitlines(keepends=True)
    assert len(kept) == len(made), "run python -m training.canary_set"
    for ours, theirs in zip(kept, made, strict=True):
        if URL in ours:
            assert unpacked(json.loads(ours)) == unpacked(json.loads(theirs))
        else:
            assert ours == theirs, "run python -m training.canary_set"


def test_every_family_says_what_it_needs_and_long_contexts_are_there(made: list[str], renderer: Renderer) -> None:
    whole = parsed_set("".join(made))
    assert set(whole.families) <= set(TRAITS)
    codec, longest = renderer.codec, dict[str, int]()
    for one in whole.questions:
        if not one.shows_pictures:
            asked = len(codec.encode(codec.convert(one.body)).ids) + len(spelled(codec, one.answer, 1))
            longest[one.family] = max(longest.get(one.family, 0), asked)
    assert max(longest.values()) <= LIMIT
    assert longest["facts"] > 0.9 * LIMIT


def test_a_family_that_nobody_described_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(canary_set, "FAMILIES", {"copying": FAMILIES["copying"]})
    monkeypatch.setattr(canary_set, "TRAITS", {})
    with pytest.raises(ConfigError, match=r"families: got \['copying'\], expected those that TRAITS"):
        list(lines())


def test_no_conversation_is_there_twice_or_in_training(made: list[str]) -> None:
    assert len(set(made)) == len(made)
    known = set(made)
    for name in ("stories", "facts", "ledger"):  # of the others there are not enough different ones
        mixture = Mixture(weights={name: 1.0}, shortest=16, longest=160)
        for split in (TRAINING, f"{HELD_OUT} {name}"):
            assert not known & {line(document(sample(0, split, number, mixture))) for number in range(60)}


@pytest.mark.parametrize("name", list(FAMILIES))
def test_an_answer_of_the_package_is_spelled_as_training_spells_it(name: str, renderer: Renderer) -> None:
    config = config_from_dict(json.loads(CONFIG.read_text(encoding="utf-8")))
    for number in range(12):
        one = sample(SEED, TRAINING, number, Mixture(weights={name: 1.0}, shortest=16, longest=90))
        answer = document(one)["messages"][-1]
        assert spelled(renderer.codec, answer, config.tokens.eos) == renderer.example(one).answer
        if one.calls:
            assert calls_text(one.calls) in answer_text(renderer, answer, config.tokens.eos)


def answer_text(renderer: Renderer, answer: dict[str, Any], eos: int) -> str:
    return renderer.codec.tokenizer.decode(spelled(renderer.codec, answer, eos))
