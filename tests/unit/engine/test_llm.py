from pathlib import Path

import numpy as np
import pytest
import torch

from flash41.chat.conversation import Message
from flash41.engine.llm import LLM
from flash41.engine.request import FinishReason, SamplingParams
from flash41.errors import CheckpointError
from helpers.checkpoints import copied
from helpers.llm_prompts import LATER, PARAMS, PROMPTS, texts
from helpers.scripted import SAMPLER, scripted

EOS = 1
SCARCE_BYTES = 78_192
"""STATE of four slots and pages for hardly more than one long request."""
ENDS_AT_ONCE = SamplingParams(max_tokens=5, temperature=0, logit_bias={EOS: 100})


# Prompts.


def test_a_text_is_sent_as_it_stands_behind_bos(llm: LLM) -> None:
    (answer,) = llm.generate("Once upon", PARAMS)
    assert answer.prompt_ids == (0, *llm.tokenizer.encode("Once upon"))


def test_control_tokens_in_a_raw_text_are_control_tokens(llm: LLM) -> None:
    marker = llm.tokenizer.token_text(EOS)
    assert llm.encode(f"a{marker}") == (0, *llm.tokenizer.encode("a"), EOS)


def test_ids_are_sent_as_they_are(llm: LLM) -> None:
    assert [answer.prompt_ids for answer in llm.generate([5, 6], PARAMS)] == [(5, 6)]
    assert [answer.prompt_ids for answer in llm.generate([(5, 6), [7]], PARAMS)] == [(5, 6), (7,)]


def test_ids_may_lie_in_arrays(llm: LLM) -> None:
    for ids in (np.array([5, 6]), torch.tensor([5, 6]), [np.int64(5), torch.tensor(6)]):
        assert [answer.prompt_ids for answer in llm.generate(ids, PARAMS)] == [(5, 6)]
    several = [answer.prompt_ids for answer in llm.generate([np.array([5, 6]), "a"], PARAMS)]
    assert several == [(5, 6), llm.encode("a")]
    assert [answer.prompt_ids for answer in llm.generate(np.array([[5, 6], [7, 8]]), PARAMS)] == [(5, 6), (7, 8)]
    assert llm.encode(np.array([5, 6])) == (5, 6)
    assert all(type(token) is int for token in llm.encode(np.array([5, 6])))


def test_no_prompts_have_no_answers(llm: LLM) -> None:
    assert llm.generate([], PARAMS) == []


def test_answers_come_in_the_order_of_the_prompts(llm: LLM) -> None:
    params = [SamplingParams(max_tokens=count, ignore_eos=True) for count in (4, 1, 3, 2)]
    answers = llm.generate(PROMPTS, params)
    assert [answer.prompt_ids for answer in answers] == [llm.encode(prompt) for prompt in PROMPTS]
    assert [len(answer.output_ids) for answer in answers] == [4, 1, 3, 2]


def test_the_text_is_the_decoded_answer(llm: LLM) -> None:
    (answer,) = llm.generate("Once upon", PARAMS)
    assert answer.text == llm.tokenizer.decode(answer.output_ids)
    assert answer.reasoning is None


# One answer, whatever surrounds it.


def test_an_answer_does_not_depend_on_its_company(llm: LLM, expected: list[tuple[int, ...]]) -> None:
    assert texts(llm) == expected
    assert len(set(expected)) == len(expected)


def test_one_slot_serves_several_prompts_one_after_the_other(
    tiny_directory: Path, expected: list[tuple[int, ...]]
) -> None:
    assert texts(LLM(tiny_directory, max_num_seqs=1)) == expected


def test_an_answer_does_not_depend_on_the_rows_of_a_step(tiny_directory: Path, expected: list[tuple[int, ...]]) -> None:
    assert texts(LLM(tiny_directory, max_num_seqs=3, max_num_batched_tokens=4)) == expected


def test_an_answer_does_not_depend_on_the_memory_it_shares(
    tiny_directory: Path, expected: list[tuple[int, ...]]
) -> None:
    longer = SamplingParams(max_tokens=20, seed=7, ignore_eos=True)
    roomy = LLM(tiny_directory, max_model_len=64, block_size=16)
    scarce = LLM(tiny_directory, max_model_len=64, max_num_seqs=4, block_size=16, memory_bytes=SCARCE_BYTES)
    assert scarce.plan.num_pages < 2 * 64 // 16
    found = texts(scarce, longer)
    assert found == texts(roomy, longer)
    assert [answer[:5] for answer in found] == expected
    assert scarce.engine.scheduler.num_preemptions > roomy.engine.scheduler.num_preemptions == 0


def test_two_slots_more_make_no_difference_to_a_used_engine(llm: LLM, expected: list[tuple[int, ...]]) -> None:
    for _ in range(2):
        assert texts(llm) == expected


# Seeds.


def test_the_same_seed_gives_the_same_answer_and_another_seed_another(llm: LLM) -> None:
    first, again, other = (llm.generate("Once upon", params)[0] for params in (PARAMS, PARAMS, LATER))
    assert first.output_ids == again.output_ids
    assert first.output_ids != other.output_ids
    assert (first.seed, other.seed) == (7, 8)


def test_a_drawn_seed_is_reported_and_gives_the_answer_again(llm: LLM) -> None:
    drawn, other = llm.generate(["Once upon"] * 2, SamplingParams(max_tokens=6))
    assert drawn.seed != other.seed
    repeated = llm.generate("Once upon", SamplingParams(max_tokens=6, seed=drawn.seed))[0]
    assert repeated.output_ids == drawn.output_ids


# Ends.


def test_eos_ends_an_answer_and_is_no_part_of_its_text(llm: LLM) -> None:
    (answer,) = llm.generate("Once upon", ENDS_AT_ONCE)
    assert answer.output_ids == (EOS,)
    assert answer.text == ""
    assert answer.finish_reason is FinishReason.STOP


def test_an_ignored_eos_is_a_token_like_any_other(llm: LLM) -> None:
    params = SamplingParams(max_tokens=3, temperature=0, logit_bias={EOS: 100}, ignore_eos=True)
    (answer,) = llm.generate("Once upon", params)
    assert answer.output_ids == (EOS,) * 3
    assert answer.text == llm.tokenizer.token_text(EOS) * 3
    assert answer.finish_reason is FinishReason.LENGTH


def test_a_stop_token_ends_an_answer_and_is_its_last_token(llm: LLM, expected: list[tuple[int, ...]]) -> None:
    third = expected[0][2]
    assert third not in expected[0][:2]
    params = SamplingParams(max_tokens=5, seed=7, ignore_eos=True, stop_token_ids=(third,))
    (answer,) = llm.generate([PROMPTS[0]], params)
    assert answer.output_ids == expected[0][:3]
    assert answer.finish_reason is FinishReason.STOP


def test_an_answer_ends_where_its_request_is_as_long_as_the_engine_allows(tiny_directory: Path) -> None:
    llm = LLM(tiny_directory, max_model_len=10)
    (answer,) = llm.generate([list(range(3, 10))], SamplingParams(max_tokens=99, ignore_eos=True))
    assert (len(answer.output_ids), answer.finish_reason) == (3, FinishReason.LENGTH)


# What is reported.


def test_logprobs_are_those_of_the_model_best_first(llm: LLM) -> None:
    params = SamplingParams(max_tokens=3, temperature=0, logprobs=4, ignore_eos=True)
    (answer,) = llm.generate("Once upon", params)
    assert answer.logprobs is not None
    assert [token.token_id for token in answer.logprobs] == list(answer.output_ids)
    for token in answer.logprobs:
        assert token.logprob is not None
        assert len(token.top_logprobs) == 4
        assert token.top_logprobs[0] == (token.token_id, token.logprob)
        values = [value for _, value in token.top_logprobs]
        assert values == sorted(values, reverse=True)
        assert 0 < sum(2.718281828**value for value in values) < 1


def test_logprobs_are_absent_unless_asked_for_and_change_no_answer(llm: LLM, expected: list[tuple[int, ...]]) -> None:
    assert llm.generate([PROMPTS[0]], PARAMS)[0].logprobs is None
    params = SamplingParams(max_tokens=5, seed=7, ignore_eos=True, logprobs=0)
    (answer,) = llm.generate([PROMPTS[0]], params)
    assert answer.output_ids == expected[0]
    assert answer.logprobs is not None
    assert [token.top_logprobs for token in answer.logprobs] == [()] * 5


def test_progress_counts_finished_answers_one_by_one(llm: LLM) -> None:
    seen: list[tuple[int, int]] = []
    llm.generate(PROMPTS, PARAMS, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(1, 4), (2, 4), (3, 4), (4, 4)]


def test_the_first_token_comes_before_the_last(llm: LLM) -> None:
    timings = llm.generate("Once upon", PARAMS)[0].timings
    assert 0 < timings.first_token_seconds < timings.total_seconds


# Conversations.


@pytest.mark.parametrize(("thinking", "effort"), [(False, None), (True, None), (True, "low"), (True, 33)])
def test_a_conversation_is_rendered_by_the_codec(llm: LLM, thinking: bool, effort: str | int | None) -> None:
    messages = [Message(role="system", content="S"), Message(role="user", content="hi")]
    answer = llm.chat(messages, PARAMS, thinking=thinking, effort=effort)
    conversation = llm.codec.conversation(messages, thinking=thinking, effort=effort)
    assert answer.prompt_ids == llm.codec.encode(conversation).ids
    assert (answer.reasoning is not None) == thinking


def test_reasoning_and_answer_are_told_apart_and_eos_is_in_neither(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    end_of_thinking = llm.tokenizer.id_of("</think>")
    assert end_of_thinking is not None
    monkeypatch.setattr(SAMPLER, scripted(300, 301, end_of_thinking, 302, EOS))
    answer = llm.chat([Message(role="user", content="hi")], thinking=True)
    first, second, third = map(llm.tokenizer.token_text, (300, 301, 302))
    assert (answer.reasoning, answer.text) == (first + second, third)
    assert answer.output_ids == (300, 301, end_of_thinking, 302, EOS)
    assert answer.finish_reason is FinishReason.STOP


def test_an_answer_cut_inside_its_reasoning_has_no_text(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SAMPLER, scripted(300, 301))
    answer = llm.chat([Message(role="user", content="hi")], SamplingParams(max_tokens=2), thinking=True)
    assert answer.reasoning == "".join(map(llm.tokenizer.token_text, (300, 301)))
    assert (answer.text, answer.finish_reason) == ("", FinishReason.LENGTH)


# Failures.


@pytest.mark.parametrize("change", ["truncated", "replaced", "removed"])
def test_a_shard_that_changes_while_in_use_is_an_error_at_the_next_step(
    change: str, tiny_directory: Path, tmp_path: Path
) -> None:
    directory = copied(tiny_directory, tmp_path)
    llm = LLM(directory)
    stream = llm.stream((0, 5, 6), PARAMS)
    next(stream)
    shard = sorted(directory.glob("*.safetensors"))[0]
    size = shard.stat().st_size
    if change == "truncated":
        with shard.open("r+b") as file:
            file.truncate(4096)
        message = rf"{shard.name}: got 4096 bytes, expected {size} \(changed while in use\)"
    elif change == "replaced":
        content = shard.read_bytes()
        shard.unlink()
        shard.write_bytes(content)
        message = rf"{shard.name}: got another file or newer content"
    else:
        shard.unlink()
        message = rf"{shard.name}: .*No such file"
    with pytest.raises(CheckpointError, match=message):
        next(stream)
    assert llm.engine.num_unfinished == 0
    with pytest.raises(CheckpointError, match=message):
        llm.generate("x", PARAMS)
    assert llm.engine.num_unfinished == 0


# Opening.


def test_without_a_name_the_embedded_default_is_opened(default_directory: Path) -> None:
    llm = LLM(threads=1)
    assert llm.directory == default_directory
    answers = llm.generate(["Hello!", [0, 17, 42]], SamplingParams(max_tokens=3, temperature=0))
    assert [1 <= len(answer.output_ids) <= 3 for answer in answers] == [True, True]


@pytest.mark.parametrize(("threads", "expected_threads"), [(None, 1), (2, 2)])
def test_a_small_model_computes_with_one_thread_unless_told_otherwise(
    threads: int | None, expected_threads: int, tiny_directory: Path
) -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        LLM(tiny_directory, threads=threads)
        assert torch.get_num_threads() == expected_threads
    finally:
        torch.set_num_threads(before)


def test_requests_may_be_as_long_as_8192_tokens_by_default(tiny_directory: Path) -> None:
    assert LLM(tiny_directory).engine.scheduler.limits.max_model_len == 8192


def test_a_prompt_that_begins_like_an_earlier_one_is_not_read_again(tiny_directory: Path) -> None:
    llm = LLM(tiny_directory, max_model_len=64, max_num_seqs=2, block_size=16)
    plain = LLM(tiny_directory, max_model_len=64, max_num_seqs=2, block_size=16, prefix_cache=False)
    text = tuple(range(3, 40))
    params = SamplingParams(max_tokens=3, seed=4, ignore_eos=True, logprobs=2)
    for ids, expected in ((text, 0), (text, 32), ((*text, 5), 32), (text[:20], 0)):
        (answer,), (alone,) = llm.generate(ids, params), plain.generate(ids, params)
        assert answer.num_cached_tokens == expected
        assert alone.num_cached_tokens == 0
        assert (answer.output_ids, answer.logprobs) == (alone.output_ids, alone.logprobs)
    assert (llm.engine.stats.num_hits, llm.engine.stats.num_lookups) == (2, 4)
    assert plain.engine.stats.num_kept_pages == 0
    assert not plain.plan.prefix_cache
