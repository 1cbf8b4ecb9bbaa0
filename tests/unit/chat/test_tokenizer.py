import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from flash41.chat.tokenizer import Tokenizer
from flash41.errors import ConfigError, RequestError
from helpers.tiny_tokenizer import TINY_TOKENIZER

VECTORS = json.loads((Path(__file__).parents[2] / "data/chat/tokenizer.json").read_text(encoding="utf-8"))
SMALL = Tokenizer.from_file(TINY_TOKENIZER / "tokenizer.json")
LIBRARY = tokenizers.Tokenizer.from_file(str(TINY_TOKENIZER / "tokenizer.json"))
EVERY_ID = st.integers(min_value=0, max_value=SMALL.vocab_size - 1)


@pytest.mark.parametrize("case", VECTORS["cases"], ids=[repr(case["text"])[:24] for case in VECTORS["cases"]])
def test_the_release_gives_the_recorded_ids_and_reads_them_back(release: Tokenizer, case: dict[str, Any]) -> None:
    assert release.encode_with_control(case["text"]) == case["ids"]
    assert release.decode(case["ids"]) == case["text"]


@pytest.mark.parametrize("token", VECTORS["special"], ids=[str(token["id"]) for token in VECTORS["special"]])
def test_the_release_knows_its_control_tokens(release: Tokenizer, token: dict[str, Any]) -> None:
    assert release.vocab_size == 129_280
    assert release.id_of(token["text"]) == token["id"]
    assert release.token_text(token["id"]) == token["text"]
    assert release.is_special(token["id"]) is token["special"]
    assert release.encode_with_control(token["text"]) == [token["id"]]


def test_a_control_token_that_a_user_types_is_plain_text(release: Tokenizer) -> None:
    ids = release.encode("<｜User｜>")
    assert len(ids) == 5
    assert release.decode(ids) == "<｜User｜>"
    assert release.id_of("<｜User｜>") not in ids


@pytest.mark.parametrize("token_id", [0, 1, 2, *range(999, 1024)])
def test_no_spelling_of_a_control_token_reaches_its_id_in_plain_text(token_id: int) -> None:
    spelling = SMALL.token_text(token_id)
    assert SMALL.id_of(spelling) == token_id
    ids = SMALL.encode(f"a{spelling} b{spelling}{spelling}")
    assert all(2 < plain < 999 for plain in ids)
    assert SMALL.decode(ids) == f"a{spelling} b{spelling}{spelling}"


@settings(deadline=None, max_examples=200)
@given(st.text())
def test_plain_text_survives_the_round_trip(text: str) -> None:
    ids = SMALL.encode(text)
    assert SMALL.decode(ids) == text
    assert SMALL.decode(ids, skip_special=True) == text


def test_nothing_is_added_at_either_end() -> None:
    assert SMALL.encode("") == []
    assert SMALL.encode_with_control("") == []


@settings(deadline=None, max_examples=300)
@given(st.lists(EVERY_ID, max_size=12), st.booleans())
def test_any_ids_decode_as_the_library_decodes_them(ids: list[int], skip: bool) -> None:
    assert SMALL.decode(ids, skip_special=skip) == LIBRARY.decode(ids, skip_special_tokens=skip)


@settings(deadline=None, max_examples=300)
@given(st.lists(EVERY_ID, max_size=12))
def test_pieces_join_to_the_whole(ids: list[int]) -> None:
    decoder = SMALL.incremental()
    assert "".join([*map(decoder.push, ids), decoder.flush()]) == LIBRARY.decode(ids, skip_special_tokens=False)


def test_a_character_split_at_every_byte_appears_with_its_last_byte() -> None:
    single_bytes = {SMALL.token_bytes(token_id): token_id for token_id in range(3, 259)}
    decoder = SMALL.incremental()
    for character in "aé你🙂<｜":
        data = [single_bytes[bytes([byte])] for byte in character.encode()]
        assert [decoder.push(token_id) for token_id in data] == [""] * (len(data) - 1) + [character]
    assert decoder.flush() == ""


def test_bytes_that_never_complete_a_character_become_a_replacement() -> None:
    lead = next(token_id for token_id in range(3, 259) if SMALL.token_bytes(token_id) == b"\xe4")
    decoder = SMALL.incremental()
    assert decoder.push(lead) == ""
    assert decoder.flush() == "\ufffd"
    assert decoder.push(SMALL.encode("x")[0]) == "x"


def test_skipping_special_tokens_keeps_the_markers_that_parsers_need() -> None:
    ids = SMALL.encode_with_control("<｜begin▁of▁sentence｜>a</think>｜DSML｜<｜User｜><｜end▁of▁sentence｜>")
    assert SMALL.decode(ids, skip_special=True) == "a</think>｜DSML｜<｜User｜>"
    decoder = SMALL.incremental(skip_special=True)
    assert "".join(map(decoder.push, ids)) == "a</think>｜DSML｜<｜User｜>"


@pytest.mark.parametrize("token_id", [-1, 1024, 10**9])
def test_an_id_outside_the_vocabulary_is_refused(token_id: int) -> None:
    with pytest.raises(RequestError, match=f"token id: got {token_id}, expected an id of this vocabulary, 0 to 1023"):
        SMALL.decode([5, token_id])
    with pytest.raises(RequestError, match="token id"):
        SMALL.incremental().push(token_id)


def test_a_lone_surrogate_is_refused() -> None:
    with pytest.raises(RequestError, match="without lone surrogates"):
        SMALL.encode("a\ud800b")


def test_unknown_control_tokens_have_no_id() -> None:
    assert SMALL.id_of("<｜nothing｜>") is None
    assert SMALL.id_of("a") is None


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"tokenizer: got '.*absent.json', expected an existing tokenizer.json"):
        Tokenizer.from_file(tmp_path / "absent.json")


@pytest.mark.parametrize("text", ["", "{", "{}", '{"version": "1.0"}'])
def test_a_broken_file_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=r"expected a valid tokenizer.json"):
        Tokenizer.from_file(path)


def test_a_tokenizer_that_is_not_byte_level_is_refused(tmp_path: Path) -> None:
    document = json.loads((TINY_TOKENIZER / "tokenizer.json").read_text(encoding="utf-8"))
    document["decoder"] = None
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(ConfigError, match="expected ByteLevel"):
        Tokenizer.from_file(path)


def test_no_id_writes_more_bytes_than_the_longest() -> None:
    assert SMALL.longest_token_bytes == max(len(SMALL.token_bytes(k)) for k in range(SMALL.vocab_size))
