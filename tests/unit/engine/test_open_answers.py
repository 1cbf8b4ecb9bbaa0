"""Answers side by side: as streams, as they finish, and when something fails."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from flash41.engine.llm import LLM
from flash41.engine.request import FinishReason, SamplingParams
from flash41.errors import CheckpointError, ProtocolError
from helpers.llm_prompts import LATER, PARAMS, PROMPTS, texts

# Streams.


def test_a_stream_gives_the_tokens_of_generate_one_by_one(llm: LLM, expected: list[tuple[int, ...]]) -> None:
    events = list(llm.stream(llm.encode(PROMPTS[0]), PARAMS))
    assert tuple(event.token.token_id for event in events) == expected[0]
    assert [event.finish_reason for event in events] == [None] * 4 + [FinishReason.LENGTH]


def test_a_seed_of_its_own_overrides_that_of_the_parameters(llm: LLM) -> None:
    streamed = [event.token.token_id for event in llm.stream(llm.encode("Once upon"), PARAMS, seed=8)]
    assert tuple(streamed) == llm.generate("Once upon", LATER)[0].output_ids


def test_a_closed_stream_frees_its_slot(tiny_directory: Path, expected: list[tuple[int, ...]]) -> None:
    llm = LLM(tiny_directory, max_num_seqs=1)
    stream = llm.stream((0, 5, 6), PARAMS)
    next(stream)
    assert llm.engine.num_unfinished == 1
    close(stream)
    assert llm.engine.num_unfinished == 0
    assert texts(llm) == expected


def close(stream: Iterator[object]) -> None:
    stream.close()  # type: ignore[attr-defined]


def test_a_stream_nobody_reads_holds_nothing(llm: LLM) -> None:
    stream = llm.stream((0, 5, 6), PARAMS)
    assert llm.engine.num_unfinished == 0
    close(stream)


def test_streams_side_by_side_lose_no_token(llm: LLM, expected: list[tuple[int, ...]]) -> None:
    streams = [llm.stream(llm.encode(prompt), PARAMS) for prompt in PROMPTS]
    got: list[list[int]] = [[] for _ in streams]
    for _ in range(PARAMS.max_tokens):
        for tokens, stream in zip(got, streams, strict=True):
            tokens.append(next(stream).token.token_id)
    assert [tuple(tokens) for tokens in got] == expected
    assert [list(stream) for stream in streams] == [[]] * len(streams)


def test_generate_may_run_between_the_events_of_a_stream(llm: LLM, expected: list[tuple[int, ...]]) -> None:
    stream = llm.stream(llm.encode(PROMPTS[0]), PARAMS)
    first = next(stream)
    assert texts(llm) == expected
    rest = list(stream)
    assert tuple(event.token.token_id for event in (first, *rest)) == expected[0]
    assert [event.finish_reason for event in rest] == [None] * 3 + [FinishReason.LENGTH]


# Answers as they finish.


def test_answers_come_as_they_finish_and_requests_are_taken_as_slots_free(llm: LLM) -> None:
    taken: list[int] = []
    lengths = [5, 1, 3, 2, 4, 1, 2, 3, 5, 1, 2]

    def requests():  # type: ignore[no-untyped-def]
        for length in lengths:
            taken.append(length)
            yield llm.request((7, length), SamplingParams(max_tokens=length, seed=1, ignore_eos=True))

    answers = llm.as_finished(requests())
    first = next(answers)
    assert (len(first.request.output_ids), len(taken)) == (1, llm.plan.max_num_seqs)
    rest = [len(answer.request.output_ids) for answer in answers]
    assert sorted([1, *rest]) == sorted(lengths)
    assert rest[0] == 1
    assert llm.engine.num_unfinished == 0


def test_closing_the_iterator_aborts_what_is_open(llm: LLM) -> None:
    requests = [llm.request((7, 8), SamplingParams(max_tokens=length, ignore_eos=True)) for length in (1, 9, 9)]
    answers = llm.as_finished(requests)
    next(answers)
    answers.close()  # type: ignore[attr-defined]
    assert [request.finish_reason for request in requests] == [FinishReason.LENGTH, *[FinishReason.ABORT] * 2]
    assert llm.engine.num_unfinished == 0


# Failures.


def test_an_error_in_a_callback_ends_all_requests_of_the_call(llm: LLM, expected: list[tuple[int, ...]]) -> None:
    def fail(done: int, total: int) -> None:
        raise ZeroDivisionError(done / total)

    params = [SamplingParams(max_tokens=count) for count in (1, 9, 9, 9)]
    with pytest.raises(ZeroDivisionError, match=r"0\.25"):
        llm.generate(PROMPTS, params, progress=fail)
    assert llm.engine.num_unfinished == 0
    assert texts(llm) == expected


def test_a_failed_step_tells_every_stream_it_computed(
    llm: LLM, monkeypatch: pytest.MonkeyPatch, expected: list[tuple[int, ...]]
) -> None:
    driving, other = (llm.stream(llm.encode(prompt), PARAMS) for prompt in PROMPTS[:2])
    next(driving)
    next(other)

    def fail(*_: object) -> None:
        raise CheckpointError("gone")

    with monkeypatch.context() as patched:
        patched.setattr(llm.engine.runner, "run", fail)
        list_of = list[object]()
        with pytest.raises(CheckpointError, match="gone"):
            list_of.extend(driving)
    with pytest.raises(ProtocolError, match=r"request \d+ after \d tokens: got 'abort', expected an end of its own"):
        list_of.extend(other)
    assert llm.engine.num_unfinished == 0
    assert texts(llm) == expected
