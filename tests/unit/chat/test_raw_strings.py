import re
from typing import Any

import jsonschema_rs
import numpy as np
import pytest

from flash41.chat.grammar import Grammars
from flash41.chat.raw_strings import FORMATS, check_spelling, constants_terminal, string_terminal, unanchored
from flash41.errors import RequestError
from helpers.constrained import CODEC, EOS, VOCAB_SIZE, drawn

GRAMMARS = Grammars(CODEC.tokenizer, VOCAB_SIZE, EOS)
SAMPLES = {
    "date": ["2024-02-28", "1999-12-31"],
    "time": ["23:59:59Z", "01:02:03.5+01:30"],
    "date-time": ["2024-02-28T10:00:00Z"],
    "email": ["a.b+c@example.org"],
    "hostname": ["a", "www.example.org"],
    "ipv4": ["0.10.200.255"],
    "ipv6": ["::", "1:2:3:4:5:6:7:8", "fe80::1:2", "::ffff"],
    "uuid": ["123e4567-e89b-12d3-a456-426614174000"],
}
NONE_OF_IT = {
    "date": ["2024-13-01", "2024-04-31", "2024-1-1"],
    "time": ["24:00:00Z", "10:00"],
    "date-time": ["2024-02-28"],
    "email": ["a@", "a b@c.d"],
    "hostname": ["-a", "a..b"],
    "ipv4": ["256.1.1.1", "1.2.3", "01.2.3.4"],
    "ipv6": ["1:2:3", ":::", "g::"],
    "uuid": ["123e4567"],
}


def takes(terminal: str, text: str) -> bool:
    matcher = GRAMMARS.matcher(f"start: X\nX: {terminal}", "thing")
    for token_id in CODEC.tokenizer.encode(text + "</"):
        matcher.push(token_id)
    return bool(matcher.mask()[EOS])


def terminal(**schema: Any) -> str:
    return string_terminal(schema, GRAMMARS, "thing")


@pytest.mark.parametrize("name", FORMATS)
def test_a_format_takes_what_it_names_and_nothing_else(name: str) -> None:
    assert SAMPLES.keys() == NONE_OF_IT.keys() == FORMATS.keys()
    for text in SAMPLES[name]:
        assert takes(terminal(format=name), text), text
    for text in NONE_OF_IT[name]:
        assert not takes(terminal(format=name), text), text


@pytest.mark.parametrize("name", FORMATS)
def test_whatever_a_format_lets_through_has_it(name: str) -> None:
    validator = jsonschema_rs.validator_for({"type": "string", "format": name}, validate_formats=True)
    for seed in range(10):
        matcher, choose, written = GRAMMARS.matcher(f"start: X\nX: {terminal(format=name)}", "thing"), drawn(seed), b""
        while not (mask := matcher.mask())[EOS]:
            token_id = choose(np.nonzero(mask)[0].tolist(), written)
            written += CODEC.tokenizer.token_bytes(token_id)
            matcher.push(token_id)
        assert validator.is_valid(written.decode().removesuffix("</")), written


def test_a_value_may_hold_what_begins_its_end() -> None:
    assert takes(terminal(), "a</b> <<\n</")
    both = constants_terminal(["a", "a</b", "", 'ü"\n\\'])
    assert all(takes(both, text) for text in ("a", "a</b", "", 'ü"\n\\'))
    assert not any(takes(both, text) for text in ("b", "a</", "aa"))


def test_lengths_count_characters() -> None:
    assert [takes(terminal(minLength=2, maxLength=3), "日" * count) for count in range(5)] == [
        False,
        False,
        True,
        True,
        False,
    ]
    assert takes(terminal(minLength=2), "abcdef")
    assert takes(terminal(maxLength=0), "")


def test_pattern_format_and_length_hold_together() -> None:
    held = terminal(pattern="^a", maxLength=12, format="email")
    assert takes(held, "a@b.cd")
    assert not any(takes(held, text) for text in ("b@b.cd", "a@bcdefghi.jkl", "abc"))


@pytest.mark.parametrize(
    ("pattern", "texts"),
    [
        ("b", "abc b"),
        ("^b", "b bc"),
        ("b$", "b ab"),
        ("^a|b", None),
        ("^(a|b)$", "a b"),
        ("^[$^|]+$", "$ ^|"),
        ("a\\$", "a$ ba$c"),
        ("^\\d\\w$", "1a 2_"),
        ("^a/b$", "a/b"),
        ("^[]a]$", "] a"),
    ],
)
def test_a_pattern_is_searched_and_anchors_bind_it(pattern: str, texts: str | None) -> None:
    if texts is None:
        with pytest.raises(RequestError, match=r"thing: pattern: got '\^a\|b', expected anchors only around the whole"):
            terminal(pattern=pattern)
        return
    candidates = ["abc", "b", "bc", "ab", "a", "$", "^|", "a$", "ba$c", "1a", "2_", "x", "a/b", "", "é1", "]"]
    for text in {*texts.split(), *candidates}:
        found = re.search(pattern.replace("[]", "[\\]"), text, re.ASCII) is not None
        assert takes(terminal(pattern=pattern), text) is found, text


@pytest.mark.parametrize("text", ["a/b", "a\nb", 'a"b', "a#b", "/* a */", "a & b", "é日", "a\\b", "// a"])
def test_no_pattern_breaks_out_of_its_place_in_the_grammar(text: str) -> None:
    for pattern in (re.escape(text), f"[{re.escape(text)}]{{{len(text)}}}"):
        held = terminal(pattern=f"^{pattern}$")
        assert takes(held, text), pattern
        assert not takes(held, text + "x"), pattern


def test_a_pattern_of_the_whole_text_needs_no_anchors() -> None:
    assert unanchored("a|b", "thing", search=False) == "(?:a|b)"


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"pattern": 3}, "thing: pattern: got 3, expected a text"),
        ({"pattern": "a(?=b)"}, "thing: pattern: got .*look-ahead"),
        ({"pattern": "a^b"}, "anchors only around the whole"),
        ({"format": "uri"}, "thing: format: got 'uri', expected one of date, time"),
        ({"minLength": 3, "maxLength": 2}, "thing: minLength: got 3, expected at most maxLength 2"),
        ({"minLength": "3"}, "thing: minLength: got '3'"),
    ],
)
def test_what_no_terminal_can_hold_is_refused(schema: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        terminal(**schema)


def test_a_text_that_must_be_written_holds_no_marker() -> None:
    check_spelling(["a", {"b": ["</"]}, 3], ["</x>"], "thing")
    with pytest.raises(RequestError, match=r"thing: got \{'b': \['a</x>'\]\}, expected no </x>"):
        check_spelling([{"b": ["a</x>"]}], ["</x>", "</y>"], "thing")
