from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flash41.chat.stops import TextWatcher, check_stop
from flash41.chat.tokenizer import Tokenizer
from flash41.errors import RequestError
from helpers.serving import small_codec
from helpers.tiny_tokenizer import TINY_TOKENIZER

EOS = 1


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(TINY_TOKENIZER / "tokenizer.json")


def fed(tokenizer: Tokenizer, ids: Sequence[int], stop: Sequence[str]) -> tuple[TextWatcher, int]:
    """A watcher and the number of ids it took until it stopped."""
    watcher = TextWatcher(tokenizer, stop, EOS)
    for number, token_id in enumerate(ids, 1):
        if watcher.push(token_id):
            return watcher, number
    return watcher, len(ids)


def bytewise(tokenizer: Tokenizer, text: str) -> list[int]:
    """Ids that write one character each."""
    ids = [token_id for character in text for token_id in tokenizer.encode(character)]
    assert tokenizer.decode(ids) == text
    return ids


def test_one_string_is_a_list_of_one() -> None:
    assert check_stop("ab") == ("ab",)
    assert check_stop(["a", "b"]) == ("a", "b")
    assert check_stop(()) == ()


def test_all_wrong_strings_are_named_at_once() -> None:
    assert check_stop(["x"] * 16) == ("x",) * 16
    wrong = ["x"] * 15 + ["", 7]
    with pytest.raises(RequestError) as caught:
        check_stop(wrong)  # type: ignore[arg-type]
    message = str(caught.value)
    assert "stop strings: got 17, expected at most 16" in message
    assert "stop[15]: got ''" in message
    assert "stop[16]: got 7" in message


def test_the_text_is_cut_before_a_stop_string_split_over_tokens(tokenizer: Tokenizer) -> None:
    ids = bytewise(tokenizer, "one STOP two")
    watcher, count = fed(tokenizer, ids, ["STOP"])
    assert (watcher.finish(), watcher.stopped, count) == ("one ", True, len("one STOP"))


def test_a_stop_string_inside_one_token_cuts_the_token(tokenizer: Tokenizer) -> None:
    (token_id,) = tokenizer.encode(" mountain")
    watcher, count = fed(tokenizer, [token_id, token_id], ["unt"])
    assert (watcher.finish(), count) == (" mo", 1)


def test_without_a_stop_string_the_whole_text_stays(tokenizer: Tokenizer) -> None:
    watcher, _ = fed(tokenizer, [*bytewise(tokenizer, "one STO"), EOS], ["STOP"])
    assert (watcher.finish(), watcher.stopped) == ("one STO", False)
    assert fed(tokenizer, bytewise(tokenizer, "one"), [])[0].finish() == "one"


def test_bytes_that_never_became_a_character_are_shown(tokenizer: Tokenizer) -> None:
    first, *_ = tokenizer.encode("🙂")
    watcher = TextWatcher(tokenizer, ["x"], EOS)
    assert not watcher.push(first)
    assert watcher.finish() == tokenizer.decode([first])


def test_an_ignored_eos_is_text_and_another_is_none(tokenizer: Tokenizer) -> None:
    heard = TextWatcher(tokenizer, [], None)
    heard.push(EOS)
    assert heard.finish() == tokenizer.token_text(EOS)
    assert fed(tokenizer, [EOS], [])[0].finish() == ""


def test_the_string_complete_first_counts_and_of_two_the_longer(tokenizer: Tokenizer) -> None:
    assert fed(tokenizer, bytewise(tokenizer, "xabcd"), ["abcd", "bc"])[0].finish() == "xa"
    assert fed(tokenizer, bytewise(tokenizer, "xabc"), ["bc", "abc"])[0].finish() == "x"


@settings(max_examples=100, deadline=None)
@given(
    text=st.text("ab €", max_size=24),
    stop=st.lists(st.text("ab €", min_size=1, max_size=4), max_size=4),
    data=st.data(),
)
def test_the_cut_does_not_depend_on_the_tokens(text: str, stop: list[str], data: st.DataObject) -> None:
    tokenizer = Tokenizer.from_file(TINY_TOKENIZER / "tokenizer.json")
    expected = text
    for end in range(len(text) + 1):
        starts = [end - len(string) for string in stop if text[:end].endswith(string)]
        if starts:
            expected = text[: min(starts)]
            break
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)))))
    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    ids = [token_id for piece in pieces if piece for token_id in tokenizer.encode(piece)]
    assert fed(tokenizer, ids, stop)[0].finish() == expected


def test_pieces_are_certain_and_join_to_the_text() -> None:
    codec = small_codec()
    for text, expected in (("one STOP two", "one "), ("one STO two", "one STO two"), ("one ST", "one ST")):
        watcher, pieces = TextWatcher(codec.tokenizer, ["STOP", "two!"], None), list[str]()
        for token_id in codec.tokenizer.encode(text):
            watcher.push(token_id)
            pieces.append(watcher.take())
            assert expected.startswith("".join(pieces)), "nothing is taken back"
        assert watcher.finish() == expected
        assert "".join([*pieces, watcher.take()]) == expected
        assert watcher.take() == ""
