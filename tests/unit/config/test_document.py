import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flash41.config.document import MAX_DEPTH, MAX_FILE_BYTES, check_depth, parse_document, read_document
from flash41.errors import ConfigError


def test_an_object_comes_out_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{"b": [1, 2.5, null, true], "a": {"\u00e9": "x"}}', encoding="utf-8")
    assert read_document(path) == {"b": [1, 2.5, None, True], "a": {"\u00e9": "x"}}


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "expected valid JSON"),
        ("{", "expected valid JSON"),
        ('{"a": 1,}', "expected valid JSON"),
        ("[1]", "got 'list', expected a JSON object"),
        ("null", "got 'NoneType', expected a JSON object"),
        ('{"a": 1, "b": 2, "a": 3, "b": 4}', "duplicate keys ['a', 'b']"),
        ('{"outer": {"a": 1, "a": 1}}', "duplicate keys ['a']"),
        ('{"a": NaN}', "NaN is no number"),
        ('{"a": -Infinity}', "-Infinity is no number"),
        ('{"a": ' + "9" * 5000 + "}", "expected valid JSON"),
        ('{"a": ' + "[" * 100_000 + "]" * 100_000 + "}", "nested"),
        ('{"a": ' + "[" * (MAX_DEPTH + 5) + "]" * (MAX_DEPTH + 5) + "}", f"nested deeper than {MAX_DEPTH}"),
    ],
    ids=lambda value: value[:24],
)
def test_what_is_no_strict_json_object_is_one_error(text: str, part: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_document(text, "here.json")
    assert str(caught.value).startswith("here.json: ")
    assert part in str(caught.value)
    assert "\n" not in str(caught.value)


def test_nesting_up_to_the_limit_is_read() -> None:
    # The object itself is the first level.
    check_depth(parse_document('{"a": ' + "[" * MAX_DEPTH + "]" * MAX_DEPTH + "}", "here"), "here")


def test_a_missing_file_says_what_was_sought(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"config\.json: expected a file"):
        read_document(tmp_path / "config.json")


def test_a_pipe_is_no_file_and_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "config.json")
    with pytest.raises(ConfigError, match="expected a file"):
        read_document(tmp_path / "config.json")


def test_a_huge_file_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    with path.open("wb") as file:
        file.truncate(MAX_FILE_BYTES + 1)
    with pytest.raises(ConfigError, match=f"got {MAX_FILE_BYTES + 1} bytes, expected at most {MAX_FILE_BYTES}"):
        read_document(path)


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(b'{"a": "\xff"}')
    with pytest.raises(ConfigError, match="expected UTF-8 text"):
        read_document(path)


@given(st.binary(max_size=200))
@settings(deadline=None, max_examples=200)
def test_random_bytes_raise_nothing_but_a_config_error(tmp_path_factory: pytest.TempPathFactory, raw: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzzed.json"
    path.write_bytes(raw)
    try:
        document = read_document(path)
    except ConfigError:
        return
    assert isinstance(document, dict)
