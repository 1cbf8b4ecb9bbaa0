"""What the Python API refuses: at opening before a weight is read, at a call before anything is computed."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flash41.chat.conversation import Message
from flash41.checkpoint.reader import MappedShards
from flash41.engine.llm import LLM
from flash41.engine.request import SamplingParams
from flash41.errors import CheckpointError, ConfigError, Flash41Error, KernelError, RequestError
from helpers.checkpoints import copied, edit_json

NAN = float("nan")


@pytest.fixture
def no_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: MappedShards, name: str) -> None:
        raise AssertionError(f"{name} was read")

    monkeypatch.setattr(MappedShards, "tensor", refuse)


@pytest.mark.usefixtures("no_weights")
@pytest.mark.parametrize(
    ("values", "error", "message"),
    [
        ({"profile": "vendr"}, ConfigError, r"profile: got 'vendr', expected one of vendor, atom, fp32, demo"),
        ({"kv_cache_dtype": "int4"}, ConfigError, r"kv_cache_dtype: got 'int4', expected one of bf16, fp4, fp8, fp32"),
        ({"index_cache_dtype": "BF16"}, ConfigError, r"index_cache_dtype: got 'BF16', expected one of"),
        ({"kv_cache_dtype": "fp8"}, ConfigError, r"kv_cache_dtype: got 'fp8', expected 'bf16' or 'fp4'"),
        ({"index_cache_dtype": "fp8"}, ConfigError, r"index_cache_dtype: got 'fp8', expected 'fp4' or 'bf16'"),
        (
            {"profile": "fp32", "kv_cache_dtype": "bf16"},
            ConfigError,
            r"profile fp32: got pool 'bf16', expected fp32",
        ),
        ({"max_model_len": 0}, ConfigError, r"max_model_len: got 0, expected > 0"),
        (
            {"max_model_len": 1_048_577},
            ConfigError,
            r"max_model_len: got 1048577, expected <= max_position_embeddings 1048576",
        ),
        ({"max_num_seqs": 0}, ConfigError, r"max_num_seqs: got 0, expected > 0"),
        ({"max_num_batched_tokens": -1}, ConfigError, r"max_num_batched_tokens: got -1, expected > 0"),
        ({"threads": 0}, ConfigError, r"threads: got 0, expected > 0"),
        ({"backend": "cuda"}, KernelError, r"backend: got 'cuda', expected one of auto, reference"),
    ],
)
def test_an_option_is_refused_by_name_before_a_weight_is_read(
    values: dict[str, Any], error: type[Flash41Error], message: str, tiny_directory: Path
) -> None:
    with pytest.raises(error, match=message):
        LLM(tiny_directory, **values)


@pytest.mark.usefixtures("no_weights")
def test_all_options_that_are_wrong_are_named_together(tiny_directory: Path) -> None:
    with pytest.raises(ConfigError, match=r"options: 3 faults") as caught:
        LLM(tiny_directory, max_num_seqs=0, threads=-1, kv_cache_dtype="fp8")
    assert all(name in str(caught.value) for name in ("max_num_seqs", "threads", "kv_cache_dtype"))


@pytest.mark.usefixtures("no_weights")
def test_a_directory_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere: expected a file"):
        LLM(tmp_path / "nowhere")


@pytest.mark.usefixtures("no_weights")
def test_a_directory_without_a_tokenizer_is_refused(tiny_directory: Path, tmp_path: Path) -> None:
    directory = copied(tiny_directory, tmp_path)
    (directory / "tokenizer.json").unlink()
    with pytest.raises(ConfigError, match=r"tokenizer: got '.*tokenizer.json', expected an existing tokenizer.json"):
        LLM(directory)


def test_a_missing_shard_is_refused(tiny_directory: Path, tmp_path: Path) -> None:
    directory = copied(tiny_directory, tmp_path)
    shard = sorted(directory.glob("*.safetensors"))[1]
    shard.unlink()
    with pytest.raises(CheckpointError, match=shard.name):
        LLM(directory)


@pytest.mark.usefixtures("no_weights")
def test_a_tokenizer_that_is_not_the_one_of_the_tables_is_refused(tiny_directory: Path, tmp_path: Path) -> None:
    directory = copied(tiny_directory, tmp_path)

    def another(document: dict[str, Any]) -> None:
        document["text_config"]["engram_compressed_vocab_size"] += 1

    edit_json(directory / "config.json", another)
    with pytest.raises(ConfigError, match=r"engram_compressed_vocab_size: got 875 classes .*, expected 876"):
        LLM(directory)


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        ([[]], r"^prompt: got \[\], expected at least one token"),
        ([0, 1024], r"^token ids: got \[1024\], expected integers from 0 to 1023"),
        ([0, -1], r"^token ids: got \[-1\]"),
        ([True, False], r"^token ids: got \[True, False\]"),
        ([1.5], r"^token ids: got \[1.5\]"),
        ([[0, "a"]], r"^token ids: got \['a'\]"),
        (None, r"^prompts: got None, expected one prompt, or a list of texts and lists of ids"),
        (b"abc", r"^prompts: got b'abc', expected one prompt, or a list of texts and lists of ids"),
        ({"a": 1}, r"^prompts: got {'a': 1}, expected one prompt, or a list of texts and lists of ids"),
        ([b"abc"], r"^token ids: got \[b'abc'\], expected integers from 0 to 1023"),
        ([0, "a"], r"^prompts: got \[0, 'a'\], expected one prompt, or a list of texts and lists of ids"),
        ([list(range(3, 67))], r"^prompt length: got 64, expected fewer tokens than max_model_len 64"),
        ("\ud800", r"^text: got '\\ud800', expected Unicode without lone surrogates"),
    ],
    ids=str,
)
def test_a_prompt_is_refused_naming_what_is_wrong_with_it(prompts: Any, message: str, llm: LLM) -> None:
    with pytest.raises(RequestError, match=message):
        llm.generate(prompts)
    assert llm.engine.num_unfinished == 0


def test_all_prompts_that_are_wrong_are_named_by_number_and_none_is_queued(llm: LLM) -> None:
    with pytest.raises(RequestError) as caught:
        llm.generate(["fine", [2000], "fine", []], SamplingParams(max_tokens=2))
    text = str(caught.value)
    assert "prompt 1: token ids: got [2000]" in text
    assert "prompt 3: prompt: got []" in text
    assert "prompt 0" not in text
    assert llm.engine.num_unfinished == 0
    (answer,) = llm.generate("fine", SamplingParams(max_tokens=2, ignore_eos=True))
    assert len(answer.output_ids) == 2


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"temperature": NAN}, r"temperature: got nan"),
        ({"seed": True}, r"seed: got True"),
        ({"logit_bias": {1024: 1.0}}, r"logit_bias tokens: got \[1024\], expected integers from 0 to 1023"),
        ({"stop_token_ids": (5, 1024)}, r"stop_token_ids: got \[1024\], expected integers from 0 to 1023"),
    ],
)
def test_parameters_are_refused_by_name(values: dict[str, Any], message: str, llm: LLM) -> None:
    with pytest.raises(RequestError, match=message):
        llm.generate("x", SamplingParams(**values))


def test_faults_of_ids_and_parameters_are_named_together(llm: LLM) -> None:
    with pytest.raises(RequestError) as caught:
        llm.generate([5, 4096], SamplingParams(logit_bias={2048: 1}, stop_token_ids=(3000,)))
    assert all(f"[{token_id}]" in str(caught.value) for token_id in (4096, 2048, 3000))


def test_there_are_as_many_parameters_as_prompts_or_one(llm: LLM) -> None:
    with pytest.raises(RequestError, match=r"sampling parameters: got 2, expected one, or one per prompt \(3\)"):
        llm.generate(["a", "b", "c"], [SamplingParams()] * 2)


def test_a_stream_refuses_at_once_not_at_its_first_event(llm: LLM) -> None:
    with pytest.raises(RequestError, match=r"token ids: got \[1024\]"):
        llm.stream([1024], SamplingParams())


def test_an_unknown_effort_is_refused(llm: LLM) -> None:
    with pytest.raises(RequestError, match=r"reasoning_effort: got 101, expected low, high, max or an integer"):
        llm.chat([Message(role="user", content="hi")], thinking=True, effort=101)


@pytest.fixture(autouse=True)
def nothing_is_left_running(llm: LLM) -> Iterator[None]:
    yield
    assert llm.engine.num_unfinished == 0
