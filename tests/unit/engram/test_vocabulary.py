import hashlib
import json
import os
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, normalizers

from flash41.config.architecture import ModelConfig
from flash41.config.huggingface import read_config
from flash41.engram import vocabulary
from flash41.engram.hashing import DEAD, engram_hashes, rows_for_span
from flash41.engram.vocabulary import REPLACEMENT, WHITE_SPACE, TokenMap, digest, normalized, token_key, token_map
from flash41.errors import CheckpointError, ConfigError, RequestError
from helpers.release_tokenizer import earlier_file

TESTS = Path(__file__).parents[2]
VECTOR: dict[str, Any] = json.loads((TESTS / "data" / "engram" / "engram.json").read_text())["token_map"]
V4_FILE = earlier_file()
TINY = TESTS / "golden" / "checkpoints" / "tiny-a"
TEXT_CASE = TESTS / "golden" / "tiny-a" / "text_prompt.npz"


def rebuilt_release_tokenizer() -> bytes:
    """The V4.1 file, made from the V4 file by nine edits of added tokens."""
    edits = json.loads((TESTS / "data" / "engram" / "release_tokenizer.json").read_text(encoding="utf-8"))
    text = V4_FILE.read_text(encoding="utf-8")
    for edit in edits["edits"]:
        entry = re.search(rf'"id": {edit["id"]},.*?}}', text, re.DOTALL)
        assert entry is not None
        changed = entry[0].replace(f'"{edit["old"]}"', f'"{edit["new"]}"')
        for flag in {"normalized", "special"} & edit.keys():
            before, after = (json.dumps(value) for value in edit[flag])
            changed = changed.replace(f'"{flag}": {before}', f'"{flag}": {after}')
        text = text.replace(entry[0], changed)
    rebuilt = (text + "\n").encode()
    assert (len(rebuilt), hashlib.sha256(rebuilt).hexdigest()) == (edits["bytes"], edits["sha256"])
    return rebuilt


@pytest.fixture(scope="module")
def release_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("release") / "tokenizer.json"
    path.write_bytes(rebuilt_release_tokenizer())
    return path


@pytest.fixture(scope="module")
def release_map(release_file: Path) -> np.ndarray:
    return token_map(release_file, VECTOR["size"])


@pytest.fixture(scope="module")
def release_words(release_file: Path) -> list[tuple[str, str]]:
    """Text and raw vocabulary string of every id."""
    tokenizer = Tokenizer.from_file(str(release_file))
    return [
        (tokenizer.decode([token_id], skip_special_tokens=False), tokenizer.id_to_token(token_id))
        for token_id in range(VECTOR["size"])
    ]


@pytest.fixture(scope="module")
def tiny_config() -> ModelConfig:
    return read_config(TINY / "config.json")


def test_release_map_has_the_known_digest(release_map: np.ndarray) -> None:
    assert release_map.dtype == np.int32
    assert release_map.shape == (VECTOR["size"],)
    assert release_map.max() + 1 == len(np.unique(release_map)) == VECTOR["classes"]
    assert digest(release_map) == VECTOR["sha256_int32_le"]


def test_map_is_the_same_before_the_renaming_of_special_tokens(release_map: np.ndarray) -> None:
    assert (token_map(V4_FILE, VECTOR["size"]) == release_map).all()


def test_dense_ids_follow_first_appearance(release_map: np.ndarray) -> None:
    first_seen = np.unique(release_map, return_index=True)[1]
    assert (np.diff(first_seen) > 0).all()
    assert release_map[VECTOR["identity_ids"]].tolist() == VECTOR["identity_ids"]


def test_tokens_that_read_alike_share_a_class(release_file: Path, release_map: np.ndarray) -> None:
    tokenizer = Tokenizer.from_file(str(release_file))
    known = VECTOR["same_class"][0]
    found = [tokenizer.encode(text, add_special_tokens=False).ids for text in known["texts"]]
    assert [len(token_ids) for token_ids in found] == [1] * len(known["texts"])
    assert {int(release_map[token_ids[0]]) for token_ids in found} == {known["compressed"]}
    blanks = [tokenizer.token_to_id(raw) for raw in ("\u0120", "\u0109", "\u010a", "\u010a\u010a")]
    assert blanks[0] == 223
    assert release_map[blanks].tolist() == [VECTOR["same_class"][1]["compressed"]] * 4


def test_release_counts_of_the_special_cases(release_map: np.ndarray, release_words: list[tuple[str, str]]) -> None:
    partial = {raw for text, raw in release_words if REPLACEMENT in text}
    whole = [text for text, _ in release_words if REPLACEMENT not in text]
    assert len(partial) == VECTOR["partial_utf8_ids"]
    assert sum(not normalized(text) for text in whole) == VECTOR["empty_after_normalise_ids"]
    assert sum((normalized(text) or text) in partial for text in whole) == VECTOR["text_ids_sharing_a_raw_key"]


def test_middle_dot_meets_the_lone_byte_with_the_same_raw_string(
    release_map: np.ndarray, release_words: list[tuple[str, str]]
) -> None:
    (text_id,) = [token_id for token_id, (text, _) in enumerate(release_words) if text == "\u00b7"]
    (byte_id,) = [token_id for token_id, (_, raw) in enumerate(release_words) if raw == "\u00b7"]
    assert text_id != byte_id
    assert release_map[text_id] == release_map[byte_id]


def test_added_tokens_are_alone_in_their_classes(release_file: Path, release_map: np.ndarray) -> None:
    added = json.loads(release_file.read_text(encoding="utf-8"))["added_tokens"]
    assert len(added) == VECTOR["added_tokens_alone"]
    sizes = Counter(release_map.tolist())
    assert all(sizes[int(release_map[token["id"]])] == 1 for token in added)


def test_dropping_only_nonspacing_marks_would_give_other_classes(
    release_words: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vocabulary, "MARKS", frozenset({"Mn"}))
    assert len({token_key(text, raw) for text, raw in release_words}) == VECTOR["wrong_if_only_Mn_dropped"]


def test_tiny_map_is_the_golden_one(tiny_config: ModelConfig) -> None:
    with np.load(TEXT_CASE) as golden:
        assert (token_map(TINY / "tokenizer.json", tiny_config.vocab_size) == golden["token_map"]).all()


def test_tiny_prompt_reaches_the_golden_rows(tiny_config: ModelConfig) -> None:
    tiny = TokenMap.from_tokenizer(TINY / "tokenizer.json", tiny_config)
    with np.load(TEXT_CASE) as golden:
        compressed = tiny.compress(golden["ids"])
        for constants in engram_hashes(tiny_config.engram):
            rows = rows_for_span(constants, compressed, 0, len(compressed), tiny.pad)
            assert (rows == golden[f"trace/L{constants.layer_id}.engram.rows"]).all()


@pytest.mark.parametrize("case", ["image_one", "images_two"])
def test_images_cut_the_golden_rows(case: str, tiny_config: ModelConfig) -> None:
    golden = json.loads((TESTS / "data" / "engram" / "tiny_images.json").read_text())[case]
    tiny = TokenMap.from_tokenizer(TINY / "tokenizer.json", tiny_config)
    ids = np.array(golden["ids"])
    compressed = tiny.compress(ids, ids == tiny_config.tokens.image)
    unmasked = tiny.compress(ids)
    for constants in engram_hashes(tiny_config.engram):
        expected = golden["rows"][str(constants.layer_id)]
        assert rows_for_span(constants, compressed, 0, len(ids), tiny.pad).tolist() == expected
        assert rows_for_span(constants, unmasked, 0, len(ids), tiny.pad).tolist() != expected


def test_ids_without_a_token_share_one_class(tiny_config: ModelConfig) -> None:
    size = tiny_config.vocab_size
    found = token_map(TINY / "tokenizer.json", size + 3)
    assert found[size:].tolist() == [found[:size].max() + 1] * 3


def test_another_number_of_classes_stops_the_start(tiny_config: ModelConfig) -> None:
    engram = tiny_config.engram
    wrong = replace(tiny_config, engram=replace(engram, compressed_vocab_size=engram.compressed_vocab_size + 1))
    expected = r"^engram_compressed_vocab_size: got 437 classes from the tokenizer, expected 438 \(a wrong map"
    with pytest.raises(ConfigError, match=expected):
        TokenMap.from_tokenizer(TINY / "tokenizer.json", wrong)


def test_a_pad_id_outside_the_vocabulary_is_refused(tiny_config: ModelConfig) -> None:
    wrong = replace(tiny_config, engram=replace(tiny_config.engram, pad_token_id=512))
    with pytest.raises(ConfigError, match=r"engram_pad_token_id: got 512, expected an id in 0..511"):
        TokenMap.from_tokenizer(TINY / "tokenizer.json", wrong)


def test_an_unreadable_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"tokenizer\.json: got 'No such file"):
        token_map(tmp_path / "tokenizer.json", 8)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"expected a tokenizer\.json"):
        token_map(tmp_path / "tokenizer.json", 8)


def test_ids_without_a_token_share_one_class_and_cost_nothing() -> None:
    known = token_map(TINY / "tokenizer.json", 512)
    found = token_map(TINY / "tokenizer.json", 10**7)
    assert np.array_equal(found[:512], known)
    assert set(found[512:].tolist()) == {known.max() + 1}


def test_a_pipe_in_place_of_the_tokenizer_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "tokenizer.json")
    with pytest.raises(CheckpointError, match=r"tokenizer\.json: got 'no regular file', expected a readable"):
        token_map(tmp_path / "tokenizer.json", 8)


SMALL = TokenMap(classes=np.array([0, 1, 2, 3, 3, 4], dtype=np.int32), pad_token_id=2)


def test_image_positions_compress_to_dead_whatever_their_id() -> None:
    mask = np.array([False, True, False])
    assert SMALL.compress((4, 5, 0), mask).tolist() == [3, DEAD, 0]
    assert (SMALL.pad, SMALL.num_classes) == (2, 5)
    assert SMALL.compress(()).tolist() == []


@pytest.mark.parametrize("wrong", [-1, 6, 2**31, -(2**40)])
def test_an_id_outside_the_vocabulary_is_refused_before_it_indexes(wrong: int) -> None:
    with pytest.raises(RequestError, match=rf"token ids: got \[{wrong}\], expected ids in 0..5 \(vocab_size 6\)"):
        SMALL.compress((1, wrong, 2, wrong))


def test_all_wrong_ids_are_named_at_once() -> None:
    with pytest.raises(RequestError, match=r"got \[-3, 7, 9\]"):
        SMALL.compress((9, 1, -3, 7))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (" The", "the"),
        ("\ufb01", "fi"),
        ("\uff21", "a"),
        ("e\u0301\u0903\u20dd", "e"),
        ("\u039f\u03a3", "\u03bf\u03c3"),
        ("\u0130", "i"),
        ("a \t\n b", "a b"),
        ("\t\n", " "),
        ("\u00a0", " "),
        ("\u000b", ""),
        ("\u0085x\u2028", "x"),
        ("\u001cx\u001f", "\u001cx\u001f"),
        ("\u200bx", "\u200bx"),
        ("\ue000", " "),
        ("\u0301", ""),
        ("", ""),
    ],
)
def test_normalisation_case(text: str, expected: str) -> None:
    assert normalized(text) == expected


def test_a_text_that_normalises_to_nothing_keeps_its_own_key() -> None:
    assert token_key("\u0301", "\u00cc\u0123") == "\u0301"
    assert token_key("\u000b", "\u010b") == "\u000b"
    assert token_key(" ", "\u0120") == " "
    assert token_key("a\ufffd", "a\u00b7") == "a\u00b7"


OTHER_NORMALIZER = normalizers.Sequence(
    [
        normalizers.NFKC(),
        normalizers.NFD(),
        normalizers.StripAccents(),
        normalizers.Lowercase(),
        normalizers.Replace(Regex(r"[ \t\r\n]+"), " "),
        normalizers.Replace(Regex(r"^ $"), "\ue000"),
        normalizers.Strip(),
        normalizers.Replace("\ue000", " "),
    ]
)

# Long-assigned characters: the two libraries follow different editions of Unicode.
letters = st.one_of(
    st.characters(min_codepoint=0, max_codepoint=0x52F),
    st.characters(min_codepoint=0x5D0, max_codepoint=0x5EA),
    st.characters(min_codepoint=0x901, max_codepoint=0x94D),
    st.characters(min_codepoint=0x1E00, max_codepoint=0x1FFE, categories=("Lu", "Ll", "Lt")),
    st.characters(min_codepoint=0x20D0, max_codepoint=0x20E0),
    st.characters(min_codepoint=0xAC00, max_codepoint=0xAC80),
    st.characters(min_codepoint=0xFF01, max_codepoint=0xFF5E),
    st.sampled_from([*WHITE_SPACE, "\u001c", "\u001f", "\u200b", "\ue000", "\ufb01", "\u03a3", "\u0130", "\u00b7"]),
)


@given(text=st.text(letters, max_size=6))
@settings(deadline=None, max_examples=400)
def test_normalisation_agrees_with_another_library(text: str) -> None:
    assert normalized(text) == OTHER_NORMALIZER.normalize_str(text)


def test_stripped_characters_are_those_another_library_strips() -> None:
    strip = normalizers.Strip()
    assert set(WHITE_SPACE) == {chr(code) for code in range(0xD800) if strip.normalize_str(chr(code)) == ""}
