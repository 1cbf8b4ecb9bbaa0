import itertools
import json
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flash41.chat.conversation import ChatCodec, Message
from flash41.chat.parsing import Delta, DeltaKind, StreamParser
from flash41.errors import RequestError
from helpers.tiny_tokenizer import TINY_IMAGE_ID, TINY_TOKENIZER

CASES = json.loads((Path(__file__).parents[2] / "data/chat/chat_parse.json").read_text(encoding="utf-8"))["cases"]
CODEC = ChatCodec.from_directory(TINY_TOKENIZER, TINY_IMAGE_ID)
SINGLE_BYTES = {CODEC.tokenizer.token_bytes(token_id): token_id for token_id in range(3, 259)}


def bytewise(text: str) -> list[int]:
    """Every byte as its own id: markers and characters are split wherever they can be."""
    return [SINGLE_BYTES[bytes([byte])] for byte in text.encode()]


def run(parser: StreamParser, ids: list[int], reason: Literal["stop", "length"]) -> list[Delta]:
    deltas: list[Delta] = []
    for token_id in ids:
        deltas += parser.push(token_id)
        if parser.stopped:
            return deltas
    return deltas + parser.finish(reason)


def joined(deltas: list[Delta], kind: DeltaKind) -> str:
    return "".join(delta.text for delta in deltas if delta.kind is kind)


def message(deltas: list[Delta]) -> dict[str, Any]:
    """The whole message, as the vectors spell it."""
    calls = []
    for index, pieces in itertools.groupby((d for d in deltas if d.kind is DeltaKind.CALL), lambda d: d.call_index):
        first, *rest = pieces
        assert first.call_start is not None
        assert first.call_start.id.startswith(f"call_{index:02d}_")
        assert all(piece.call_start is None for piece in rest)
        function = {"name": first.call_start.name, "arguments": "".join(piece.text for piece in [first, *rest])}
        calls.append({"index": index, "type": "function", "function": function})
    result: dict[str, Any] = {"role": "assistant", "content": joined(deltas, DeltaKind.CONTENT)}
    if any(delta.kind is DeltaKind.REASONING for delta in deltas):
        result["reasoning_content"] = joined(deltas, DeltaKind.REASONING)
    return result | ({"tool_calls": calls} if calls else {})


def assert_same(got: dict[str, Any], case: dict[str, Any]) -> None:
    expected = case["expect"]["message"]
    if "response_format" in case["request"]:
        # In JSON mode each piece of prose becomes one blank, so the number of blanks depends on the split.
        got, expected = ({**side, "content": " ".join(side["content"].split())} for side in (got, expected))
    assert got == expected


@pytest.mark.parametrize("split", ["tokens", "bytes"])
@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_completions_parse_as_recorded_however_they_are_split(case: dict[str, Any], split: str) -> None:
    parser = CODEC.parser(CODEC.convert(case["request"]))
    text = case["completion"]
    ids = bytewise(text) if split == "bytes" else CODEC.tokenizer.encode_with_control(text)
    deltas = run(parser, ids, "stop" if case["backend_finish"] == "Stop" else "length")
    assert_same(message(deltas), case)
    assert parser.finish_reason == case["expect"]["finish_reason"]


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_the_release_reads_the_recorded_completions(release_codec: ChatCodec, case: dict[str, Any]) -> None:
    parser = release_codec.parser(release_codec.convert(case["request"]))
    ids = release_codec.tokenizer.encode_with_control(case["completion"])
    deltas = run(parser, ids, "stop" if case["backend_finish"] == "Stop" else "length")
    assert_same(message(deltas), case)


def test_pieces_come_out_as_soon_as_they_are_certain() -> None:
    parser = CODEC.parser(CODEC.conversation([Message(role="user", content="h")]))
    assert [delta.text for delta in parser.push(CODEC.tokenizer.encode("r")[0])] == ["r"]
    close = CODEC.tokenizer.id_of("</think>")
    assert close is not None
    assert parser.push(close) == []
    first, second, third = bytewise("你")
    assert parser.push(first) == []
    assert parser.push(second) == []
    assert parser.push(third) == [Delta(kind=DeltaKind.CONTENT, text="你")]


def test_an_unfinished_character_is_delivered_as_a_replacement() -> None:
    parser = CODEC.parser(CODEC.conversation([Message(role="user", content="h")], thinking=False))
    assert parser.push(bytewise("é")[0]) == []
    assert parser.finish("length") == [Delta(kind=DeltaKind.CONTENT, text="\ufffd")]
    assert parser.finish_reason == "length"


@pytest.mark.parametrize("stops", [["STOP"], ["END", "STOP"], ["ST", "STOP"]])
def test_a_stop_string_ends_the_message_at_once_and_is_removed(stops: list[str]) -> None:
    parser = CODEC.parser(CODEC.conversation([Message(role="user", content="h")], thinking=False, stop=stops))
    deltas: list[Delta] = []
    ids = bytewise("abcSTOPdef")
    pushed = 0
    while not parser.stopped:
        deltas += parser.push(ids[pushed])
        pushed += 1
    assert joined(deltas, DeltaKind.CONTENT) == "abc"
    assert pushed == (5 if "ST" in stops else 7)
    assert parser.finish_reason == "stop"
    assert parser.push(ids[pushed]) == []
    assert parser.finish("length") == []
    assert parser.finish_reason == "stop"


def test_what_looked_like_a_stop_string_is_given_back() -> None:
    parser = CODEC.parser(CODEC.conversation([Message(role="user", content="h")], thinking=False, stop=["STOP"]))
    assert message(run(parser, bytewise("abSTO STOx STO"), "stop"))["content"] == "abSTO STOx STO"


def test_a_stop_string_in_reasoning_or_in_a_call_does_not_count() -> None:
    tool = {"type": "function", "function": {"name": "f"}}
    conversation = CODEC.conversation([Message(role="user", content="h")], tools=[tool], stop=["STOP"])
    parser = CODEC.parser(conversation)
    call = '<｜DSML｜ calls>\n<｜DSML｜ invoke name="f">\n<｜DSML｜ parameter name="x" string="true">STOP'
    call += "</｜DSML｜ parameter>\n</｜DSML｜ invoke>"
    deltas = run(parser, CODEC.tokenizer.encode_with_control(f"STOP</think>{call}"), "stop")
    assert joined(deltas, DeltaKind.REASONING) == "STOP"
    assert joined(deltas, DeltaKind.CALL) == '{"x": "STOP"}'
    assert parser.finish_reason == "tool_calls"


def test_a_required_call_starts_inside_the_calls() -> None:
    tool = {"type": "function", "function": {"name": "f"}}
    messages = [Message(role="user", content="h")]
    parser = CODEC.parser(CODEC.conversation(messages, thinking=False, tools=[tool], tool_choice="required"))
    deltas = run(
        parser, CODEC.tokenizer.encode_with_control('<｜DSML｜ invoke name="f">\n\n</｜DSML｜ invoke>\n'), "stop"
    )
    assert [delta.text for delta in deltas] == ["", "{}"]
    assert parser.finish_reason == "tool_calls"


@pytest.mark.parametrize(
    ("prefix", "kind"),
    [(Message(role="assistant", content="", reasoning="so", prefix=True), DeltaKind.REASONING),
     (Message(role="assistant", content="so", prefix=True), DeltaKind.CONTENT)],
)  # fmt: skip
def test_a_continued_turn_keeps_its_leading_newlines(prefix: Message, kind: DeltaKind) -> None:
    parser = CODEC.parser(CODEC.conversation([Message(role="user", content="h"), prefix]))
    assert run(parser, CODEC.tokenizer.encode("\n\nthen"), "stop")[0].kind is kind
    deltas = run(CODEC.parser(CODEC.conversation([Message(role="user", content="h"), prefix])), bytewise("\nx"), "stop")
    assert joined(deltas, kind) == "\nx"


@settings(deadline=None, max_examples=100)
@given(st.text(max_size=20), st.text(max_size=20))
def test_reasoning_and_content_survive_any_text_without_markup(reasoning: str, content: str) -> None:
    parser = CODEC.parser(CODEC.conversation([Message(role="user", content="h")]))
    close = CODEC.tokenizer.id_of("</think>")
    assert close is not None
    deltas = run(parser, [*bytewise(reasoning), close, *CODEC.tokenizer.encode(content)], "stop")
    if "think>" not in reasoning + content:
        assert joined(deltas, DeltaKind.REASONING) == reasoning.strip("\n")
        assert joined(deltas, DeltaKind.CONTENT) == content.lstrip("\n")


def test_an_id_outside_the_vocabulary_is_refused() -> None:
    parser = CODEC.parser(CODEC.conversation([Message(role="user", content="h")]))
    with pytest.raises(RequestError, match="token id: got 1024"):
        parser.push(1024)
