from collections.abc import Iterator
from pathlib import Path

import pytest

from flash41.chat.conversation import Message
from flash41.chat.parts import Image
from flash41.engine.llm import LLM
from flash41.engine.request import SamplingParams
from flash41.errors import RequestError
from flash41.tools.chat_session import ChatSession, Manner, Turn
from helpers.image_files import encoded, pattern
from helpers.scripted import SAMPLER, scripted

EOS = 1
SHORT = SamplingParams(max_tokens=6, seed=5)


@pytest.fixture(scope="module")
def llm(tiny_directory: Path) -> LLM:
    return LLM(tiny_directory, max_num_seqs=1, max_model_len=512, block_size=32, state_image_interval=32)


def texts(turn: Turn) -> tuple[str, str]:
    """Reasoning and content of an answer that is read to its end."""
    pieces = list(turn)
    return (
        "".join(piece.text for piece in pieces if piece.is_reasoning),
        "".join(piece.text for piece in pieces if not piece.is_reasoning),
    )


def script(llm: LLM, text: str) -> tuple[int, ...]:
    return (*llm.tokenizer.encode_with_control(text), EOS)


def test_answers_are_those_of_the_library_and_the_conversation_grows(llm: LLM) -> None:
    session = ChatSession(llm, SHORT, Manner(system="Be brief."))
    asked = [Message(role="system", content="Be brief."), Message(role="user", content="hello")]
    expected = llm.chat(asked, SHORT).text
    assert texts(session.ask("hello")) == ("", expected)
    assert session.messages == [asked[1], Message(role="assistant", content=expected)]
    asked += [Message(role="assistant", content=expected), Message(role="user", content="and again")]
    assert texts(session.ask("and again"))[1] == llm.chat(asked, SHORT).text
    assert len(session.messages) == 4


def test_reasoning_is_told_apart_and_kept(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SAMPLER, scripted(*script(llm, "because</think>Hi")))
    session = ChatSession(llm, SamplingParams(max_tokens=64), Manner(thinking=True, effort=33))
    turn = session.ask("hello")
    assert texts(turn) == ("because", "Hi")
    assert session.messages[1] == Message(role="assistant", content="Hi", reasoning="because")
    assert (turn.figures.ending, turn.figures.num_tokens) == ("stop", len(script(llm, "because</think>Hi")))
    conversation = llm.codec.conversation([Message(role="user", content="hello")], thinking=True, effort=33)
    assert turn.figures.num_prompt_tokens == len(llm.codec.encode(conversation).ids)


def test_a_stopped_answer_counts_as_said_so_far_and_leaves_nothing_in_the_engine(llm: LLM) -> None:
    session = ChatSession(llm, SamplingParams(max_tokens=200, seed=5), Manner())
    turn = session.ask("hello")
    pieces: Iterator[object] = iter(turn)
    first = next(iter(turn)).text + next(iter(turn)).text
    turn.close()
    assert session.messages == [Message(role="user", content="hello"), Message(role="assistant", content=first)]
    assert turn.figures.ending == "abort"
    assert llm.engine.num_unfinished == 0
    assert list(pieces) == []
    turn.close()  # there is nothing to stop
    assert len(session.messages) == 2


def test_an_answer_without_a_word_leaves_the_conversation_as_it_was(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SAMPLER, scripted(EOS))
    session = ChatSession(llm, SHORT, Manner())
    assert texts(session.ask("hello")) == ("", "")
    session.ask("never read").close()
    assert session.messages == []


def test_what_does_not_fit_is_refused_and_changes_nothing(llm: LLM) -> None:
    session = ChatSession(llm, SHORT, Manner())
    texts(session.ask("hello"))
    before = list(session.messages)
    with pytest.raises(RequestError, match="prompt length"):
        session.ask("word " * 600)
    assert session.messages == before


def test_what_was_computed_is_not_computed_again(llm: LLM) -> None:
    session = ChatSession(llm, SHORT, Manner())
    texts(session.ask("a long enough text " * 8))
    turn = session.ask("and again")
    texts(turn)
    assert 32 <= turn.figures.num_cached_tokens < turn.figures.num_prompt_tokens
    assert turn.figures.tokens_per_second is None or turn.figures.tokens_per_second > 0


def test_an_attached_picture_is_shown_with_the_next_message_and_stays_in_the_conversation(
    llm: LLM, tmp_path: Path
) -> None:
    file = tmp_path / "a.png"
    file.write_bytes(encoded(pattern(60, 45)))
    session = ChatSession(llm, SHORT, Manner())
    assert session.attach(file).plan.num_tokens == 10
    asked = [Message(role="user", content=(Image(file), "What is it?"))]
    turn = session.ask("What is it?")
    expected = llm.chat(asked, SHORT)
    assert texts(turn)[1] == expected.text
    assert turn.figures.num_prompt_tokens == len(expected.prompt_ids)
    assert (session.attached, len(session.pictures)) == ([], 1)
    asked += [Message(role="assistant", content=expected.text), Message(role="user", content="and again")]
    assert texts(session.ask("and again"))[1] == llm.chat(asked, SHORT).text
    session.reset()
    assert session.pictures == []


def test_a_file_that_is_no_picture_is_refused_and_attaches_nothing(llm: LLM, tmp_path: Path) -> None:
    session = ChatSession(llm, SHORT, Manner())
    (tmp_path / "a.png").write_bytes(b"<svg/>")
    for name in ("a.png", "b.png"):
        with pytest.raises(RequestError, match=name):
            session.attach(tmp_path / name)
    assert session.attached == []


def test_a_message_that_is_refused_keeps_its_pictures(llm: LLM, tmp_path: Path) -> None:
    file = tmp_path / "a.png"
    file.write_bytes(encoded(pattern(60, 45)))
    session = ChatSession(llm, SHORT, Manner())
    session.attach(file)
    with pytest.raises(RequestError, match="prompt length"):
        session.ask("hello " * 2000)
    assert len(session.attached) == 1


def test_reset_forgets_the_turns_and_keeps_the_manner(llm: LLM) -> None:
    session = ChatSession(llm, SHORT, Manner(system="Be brief."))
    first = session.ask("hello")
    texts(first)
    session.reset()
    assert (session.messages, session.manner) == ([], Manner(system="Be brief."))
    assert session.ask("hello").figures.num_prompt_tokens == first.figures.num_prompt_tokens


def test_figures_count_the_drafts_of_one_answer(llm: LLM, tiny_directory: Path) -> None:
    drafting = LLM(tiny_directory, max_num_seqs=1, max_model_len=512, draft="on")
    session, plain = ChatSession(drafting, SHORT, Manner()), ChatSession(llm, SHORT, Manner())
    for said in ("hello", "and again"):
        before, turn, undrafted = drafting.engine.stats, session.ask(said), plain.ask(said)
        assert texts(turn) == texts(undrafted)
        after = drafting.engine.stats
        assert turn.figures.num_draft_tokens == sum(after.drafted_tokens) - sum(before.drafted_tokens) > 0
        assert turn.figures.num_accepted_tokens == sum(after.accepted_tokens) - sum(before.accepted_tokens)
        assert undrafted.figures.num_draft_tokens == 0
