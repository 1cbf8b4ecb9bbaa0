"""Messages between the two processes: whatever is sent is read as it was, however the bytes are cut."""

from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flash41.chat.protocols import Protocol
from flash41.checkpoint.expert_counts import ExpertCounts
from flash41.engine.events import SampledToken
from flash41.engine.request import FinishReason, SamplingParams
from flash41.engine.stats import EngineStats
from flash41.errors import CheckpointError, ConfigError, Flash41Error, ProtocolError, RequestError
from flash41.server import messages
from flash41.server.message_values import figures_of, stats_of
from flash41.server.messages import (
    Abort,
    Lines,
    Opening,
    Ready,
    Report,
    Stop,
    Submit,
    line,
    message_of,
)
from flash41.server.service import (
    ConversationWish,
    GeneratedToken,
    GenerationError,
    Job,
    ModelFacts,
    ServiceStats,
)
from helpers.image_files import SMALL_SIZES
from helpers.picturing import drawn

TEXTS = st.text(st.characters(exclude_categories=()), max_size=8)
"""Lone surrogates, line breaks and all."""
FLOATS = st.floats(allow_nan=False)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | FLOATS | TEXTS, lambda inner: st.lists(inner, max_size=3)
)
FACTS = ModelFacts(
    names=("a", "b"), max_model_len=9, max_num_seqs=2, vocab_size=7, bos_token_id=0, eos_token_id=1, choices=("c",)
)


def stats(numbers: int = 3) -> ServiceStats:
    lists: dict[str, Any] = {"approximate": ("prefix-replay",), "drafted_tokens": (5, 4), "accepted_tokens": (3,)}
    lists["experts"] = (ExpertCounts(layer="layers.0", num_hits=numbers, read_bytes=1 << 40),)
    engine: dict[str, Any] = {
        field.name: lists.get(field.name, numbers + k) for k, field in enumerate(fields(EngineStats))
    }
    return ServiceStats(engine=EngineStats(**engine), num_steps=7, num_failing_steps=2, step_seconds=0.1, taken=1 / 3)


def carried(sent: bytes) -> list[Any]:
    (found,) = Lines().feed(sent)
    return found  # type: ignore[no-any-return]


PARAMS = st.builds(
    SamplingParams,
    max_tokens=st.integers(1, 9),
    temperature=st.floats(0, 2),
    logit_bias=st.dictionaries(st.integers(0, 99), st.floats(-100, 100), max_size=3),
    stop_token_ids=st.lists(st.integers(0, 9), max_size=2).map(tuple),
    top_k=st.none() | st.integers(1, 9),
    logprobs=st.none() | st.integers(0, 20),
)
WISHES = st.builds(
    ConversationWish,
    protocol=st.sampled_from(Protocol),
    body=st.dictionaries(TEXTS, JSON, max_size=3),
    thinks_by_default=st.booleans(),
)
JOBS = st.builds(
    Job,
    prompt_ids=st.lists(st.integers(0, 2**31), max_size=5).map(tuple),
    params=PARAMS,
    seed=st.integers(0, 2**63 - 1),
    stop=st.lists(TEXTS, max_size=2).map(tuple),
    conversation=st.none() | WISHES,
    salt=st.binary(max_size=4),
)
TOKENS = st.builds(
    GeneratedToken,
    token=st.builds(
        SampledToken,
        token_id=st.integers(0, 2**31),
        logprob=st.floats(max_value=0),
        top_logprobs=st.lists(st.tuples(st.integers(0, 9), st.floats(max_value=0)), max_size=3).map(tuple),
    )
    | st.builds(SampledToken, token_id=st.integers(0, 2**31)),
    finish_reason=st.none() | st.sampled_from(FinishReason),
    num_cached_tokens=st.integers(0, 99),
    num_draft_tokens=st.integers(0, 9),
    num_accepted_tokens=st.just(0),
    undrafted_because=st.none() | TEXTS,
)


@settings(max_examples=60, deadline=None)
@given(job=JOBS, job_id=st.integers(0, 2**40))
def test_a_job_is_read_as_it_was_sent(job: Job, job_id: int) -> None:
    assert messages.read_order(carried(messages.order_line(Submit(job_id, job)))) == Submit(job_id, job)


def test_pictures_of_a_job_are_read_to_the_byte() -> None:
    shown = (drawn(60, 45), drawn(40, 90, seed=2))
    job = Job(prompt_ids=(0, 511, 511), params=SamplingParams(), seed=1, pictures=shown)
    found = messages.read_order(carried(messages.order_line(Submit(3, job))))
    assert isinstance(found, Submit)
    for one, read in zip(shown, found.job.pictures, strict=True):
        assert (read.identity, read.plan) == (one.identity, one.plan)
        assert (read.patches.dtype, read.patches.shape) == (one.patches.dtype, one.patches.shape)
        assert (read.patches == one.patches).all()


@pytest.mark.parametrize("order", [Abort(7), Stop()])
def test_so_are_the_other_orders(order: messages.Order) -> None:
    assert messages.read_order(carried(messages.order_line(order))) == order


@settings(max_examples=60, deadline=None)
@given(tokens=st.lists(st.tuples(st.integers(0, 99), TOKENS), max_size=4))
def test_a_report_is_read_as_it_was_sent(tokens: list[tuple[int, GeneratedToken]]) -> None:
    failures: list[tuple[int, Flash41Error]] = [(8, RequestError("a\nb")), (9, GenerationError("c"))]
    found = messages.read_report(
        carried(messages.report_line(Report(tokens=tokens, failures=failures, figures=figures_of(stats()))))
    )
    assert (found.tokens, stats_of(found.figures)) == (tokens, stats())
    assert [(job_id, type(error), str(error)) for job_id, error in found.failures] == [
        (8, RequestError, "a\nb"),
        (9, GenerationError, "c"),
    ]


def test_an_opening_and_its_answer_are_read_as_they_were_sent() -> None:
    opening = Opening(options={"model": None, "threads": 2}, names=("a",), logs_json=True)
    assert messages.read_opening(carried(messages.opening_line(opening))) == opening
    for facts in (FACTS, replace(FACTS, image_token_id=5, image_sizes=SMALL_SIZES)):
        ready = Ready(facts=facts, directory="/some\nwhere", image_token_id=5, stats=stats())
        assert messages.read_answer(carried(messages.ready_line(ready))) == ready


@pytest.mark.parametrize("error", [ConfigError("a"), CheckpointError("b\n  1. c"), OSError("[Errno 28] no space")])
def test_a_refusal_is_raised_as_what_it_was(error: Exception) -> None:
    with pytest.raises(type(error)) as caught:
        messages.read_answer(carried(messages.refusal_line(error)))
    assert str(caught.value) == str(error)


@settings(max_examples=40, deadline=None)
@given(sent=st.lists(JSON, max_size=4), cut=st.integers(1, 9))
def test_lines_do_not_depend_on_where_the_bytes_are_cut(sent: list[Any], cut: int) -> None:
    whole, lines = b"".join(line(item) for item in sent), Lines()
    found = [message for start in range(0, len(whole), cut) for message in lines.feed(whole[start : start + cut])]
    assert found == [[item] for item in sent]


def test_a_large_message_costs_no_more_than_its_bytes() -> None:
    body = line("x" * 2**22)
    lines, found = Lines(), list[Any]()
    for start in range(0, len(body), 1024):  # joined anew with each piece this would copy 8 GiB
        found += lines.feed(body[start : start + 1024])
    assert found == [message_of(body)]


def test_reading_calls_nothing_that_a_message_names() -> None:
    with pytest.raises(KeyError, match="eval"):
        messages.read_answer(["refused", "eval", "1"])
    with pytest.raises(KeyError, match="eval"):
        messages.read_report(["report", [], [[1, "eval", "1"]], []])
    with pytest.raises(ProtocolError, match="eval"):
        messages.read_order(["eval", "1"])
