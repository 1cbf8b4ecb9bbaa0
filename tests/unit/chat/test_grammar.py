import json
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from flash41.chat import grammar
from flash41.chat.constraints import AnswerConstraints
from flash41.chat.conversation import ChatCodec
from flash41.chat.grammar import Grammars, json_rule, literal
from flash41.errors import RequestError
from helpers.constrained import CHAT, CODEC, EOS, VOCAB_SIZE, asks_for

GRAMMARS = Grammars(CODEC.tokenizer, VOCAB_SIZE, EOS)
USER = [{"role": "user", "content": "json"}]


def test_without_the_extra_only_constrained_requests_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar, "IS_INSTALLED", False)
    made = AnswerConstraints(CODEC, VOCAB_SIZE, EOS)
    assert made.constraint(CODEC.convert({"messages": USER})) is None
    with pytest.raises(
        RequestError, match=r"expected the extra `grammar` to be installed \(pip install 'flash41\[grammar\]'\)"
    ):
        made.constraint(CODEC.convert({"messages": USER, **CHAT, **asks_for({"type": "null"})}))


def test_the_package_is_imported_without_the_library() -> None:
    code = (
        "import sys; sys.modules['llguidance'] = None; import flash41.chat.constraints, flash41.chat.grammar as found; "
    )
    code += "print(found.IS_INSTALLED)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_a_mask_follows_the_text() -> None:
    matcher = GRAMMARS.matcher('start: "ab" ("c" | "d")', "thing")
    for text, following in (("a", {b"b", b"a"}), ("b", {b"c", b"d"}), ("c", set())):
        mask = matcher.mask()
        assert (mask.dtype, mask.shape, bool(mask[EOS])) == (np.bool_, (VOCAB_SIZE,), False)
        (token_id,) = CODEC.tokenizer.encode(text)
        assert mask[token_id], text
        matcher.push(token_id)
        assert {
            GRAMMARS.spellings.of_token[found][:1] for found in np.nonzero(matcher.mask())[0] if found != EOS
        } <= following
    assert np.nonzero(matcher.mask())[0].tolist() == [EOS]
    matcher.push(EOS)
    assert matcher.failure is None


def test_a_token_that_is_not_allowed_fails_the_matcher_and_only_it() -> None:
    first, second = GRAMMARS.matcher('start: "ab"', "thing"), GRAMMARS.matcher('start: "ab"', "thing")
    first.push(CODEC.tokenizer.encode("x")[0])
    assert first.failure is not None
    assert not first.mask().any()
    assert second.failure is None
    assert second.mask().any()


def test_control_tokens_are_allowed_only_by_their_ids() -> None:
    think = CODEC.tokenizer.id_of("<think>")
    named = GRAMMARS.matcher(f"start: <[{think}]>", "thing")
    assert np.nonzero(named.mask())[0].tolist() == [think]
    anything = GRAMMARS.matcher("start: X\nX: /(?s:.*)/", "thing").mask()
    assert np.nonzero(anything[sorted(CODEC.tokenizer.control_ids)])[0].tolist() == [
        sorted(CODEC.tokenizer.control_ids).index(EOS)
    ]


def test_ids_beyond_the_tokenizer_are_never_allowed() -> None:
    wider = Grammars(CODEC.tokenizer, VOCAB_SIZE + 100, EOS)
    mask = wider.matcher("start: X\nX: /(?s:.*)/", "thing").mask()
    assert mask.shape == (VOCAB_SIZE + 100,)
    assert not mask[VOCAB_SIZE:].any()


@pytest.mark.parametrize("value", [{"a": [1, "x"]}, [True, None], "é\n"])
def test_compact_json_is_written_as_conversations_do(value: Any) -> None:
    matcher = GRAMMARS.matcher(f"start: {json_rule(True, compact=True)}", "thing")
    for token_id in CODEC.tokenizer.encode(json.dumps(value, ensure_ascii=False)):
        assert matcher.mask()[token_id]
        matcher.push(token_id)
    assert matcher.mask()[EOS]


def test_a_literal_is_its_text_whatever_it_holds() -> None:
    for text in ('a"b', "a\\b", "\n\t\x01", "ü日😀", "/*", "a|b"):
        matcher = GRAMMARS.matcher(f"start: {literal(text)}", "thing")
        for token_id in CODEC.tokenizer.encode(text):
            assert matcher.mask()[token_id], text
            matcher.push(token_id)
        assert np.nonzero(matcher.mask())[0].tolist() == [EOS]


def test_messages_name_the_keyword_and_no_place_in_a_grammar() -> None:
    with pytest.raises(RequestError) as found:
        GRAMMARS.check_pattern("\\bfoo", "thing")
    assert "lookarounds not supported" in str(found.value)
    for noise in ("start:", "\n", " | ", "at 2("):
        assert noise not in str(found.value)
    with pytest.raises(RequestError, match=r'^thing: got \'Unimplemented keys: \["not"\]\', expected a JSON Schema'):
        GRAMMARS.check_json({"not": {}}, "thing")


def test_the_released_vocabulary_is_followed(release_codec: ChatCodec) -> None:
    size = release_codec.tokenizer.vocab_size
    matcher = Grammars(release_codec.tokenizer, size, EOS).matcher(f"start: {json_rule({'type': 'object'})}", "thing")
    for token_id in release_codec.tokenizer.encode('{"city": "東京", "days": [1, 2.5e3]}'):
        mask = matcher.mask()
        assert mask.shape == (size,)
        assert mask[token_id]
        assert not mask[[0, 1, 128_803, 128_822, 128_825, 129_264]].any()
        matcher.push(token_id)
    assert matcher.mask()[EOS]
