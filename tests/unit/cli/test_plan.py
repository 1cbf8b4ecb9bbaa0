"""`flash41 plan`: what a newcomer types and reads, and every wrong use."""

import json
import shlex
from pathlib import Path

import pytest

from flash41.cli.machine_options import memory_here
from flash41.errors import ConfigError
from helpers.checkpoints import TINY
from helpers.command_line import invoke
from helpers.config_documents import patched


def facts(output: str) -> dict[str, str]:
    """The lines of the answer by their names."""
    _, _, rest = output.partition("\nAnswer\n")
    lines = rest.partition("\n\n")[0].splitlines()
    return {name.strip(): value.strip() for name, _, value in (line.strip().partition("  ") for line in lines)}


def test_the_question_of_the_help_is_answered() -> None:
    help_text = " ".join(invoke("plan", "--help").output.split())
    assert "How many requests of 100,000 tokens fit in 64 GiB?" in help_text
    example = "flash41 plan --ram 64G --context 100000"
    assert example in help_text
    result = invoke(*shlex.split(example)[1:])
    assert result.exit_code == 0
    answer = facts(result.output)
    assert answer["requests"] == "at most 150 of 100,000 tokens at once"
    assert answer["context"] == "at most 1,048,576 tokens for each of 1 at once"
    assert answer["verdict"] == "fits, with experts on the disk"
    assert answer["speed, one request"].endswith("tokens per second; the disk ends it")


def test_more_than_the_answer_does_not_fit_and_says_what_to_change() -> None:
    assert invoke("plan", "--ram", "64G", "--context", "100000", "--concurrency", "150").exit_code == 0
    result = invoke("plan", "--ram", "64G", "--context", "100000", "--concurrency", "151")
    assert result.exit_code == 1
    assert "\nAny one of these makes it fit\n  --kv-cache-dtype fp4\n" in result.output
    assert "too few" in facts(result.output)["left"] or int(facts(result.output)["left"].split()[0].replace(",", ""))


def test_gpus_share_the_weights_and_say_that_nothing_runs_there_yet() -> None:
    result = invoke("plan", *shlex.split("--gpu 141G --gpus 4 --context 131072 --concurrency 16 --draft on"))
    assert result.exit_code == 0
    assert result.output.splitlines()[0] == (
        "DeepSeek-V4.1-Flash on 4 GPUs of 141.00 GiB: 16 requests of 131,072 tokens"
    )
    assert "Memory of each GPU" in result.output
    assert "this version computes on processors" in result.output
    assert "133" not in facts(result.output)["requests"]
    assert "speed, 16 together" in result.output


def test_without_a_machine_it_is_this_one() -> None:
    document = json.loads(invoke("plan", TINY, "--json").output)
    assert document["machine"]["device_bytes"] == memory_here()
    assert ", this one: 1 request of 8,192 tokens" in invoke("plan", TINY).output.splitlines()[0]


def test_a_directory_or_a_config_is_planned_without_weights(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(patched({"text_config.max_position_embeddings": 4096})))
    for place in (tmp_path, path):
        document = json.loads(invoke("plan", place, "--ram", "64G", "--json").output)
        assert document["asked"]["context"] == 4096
        assert document["largest_context"] == 4096


def test_every_default_is_printed_as_an_assumption_and_a_stated_value_is_not() -> None:
    assumed = invoke("plan", "--unified", "128G").output
    assert "(--memory-bandwidth)" in assumed
    assert "memory is read at 256,000,000,000 bytes per second" in assumed
    stated = invoke(
        "plan", *shlex.split("--unified 128G --memory-bandwidth 546G/s --disk-read 14G --reserve 8G")
    ).output
    assert "(--" not in stated.partition("\nAssumptions\n")[2]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--gpu 141G --unified 128G", "expected one of --gpu, --ram and --unified"),
        ("--ram 64G --unified 128G", "expected one of --gpu, --ram and --unified"),
        ("--gpus 4", "expected --gpu"),
        ("--ram lots", "'lots', expected bytes above 0"),
        ("--ram 64G --disk-read fast", "'fast', expected bytes per second above 0 such as 7G/s"),
        ("--ram 64G --memory-bandwidth 0G/s", "'0G/s', expected bytes per second"),
        ("--ram 64G --reserve -1", "'-1', expected bytes above 0"),
        ("--ram 64G --context many", "Invalid value for '--context'"),
    ],
)
def test_wrong_usage_names_the_option_and_what_it_takes(arguments: str, message: str) -> None:
    result = invoke("plan", *shlex.split(arguments))
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())


def test_every_refusal_comes_at_once_with_its_reason() -> None:
    result = invoke("plan", *shlex.split("--gpu 141G --gpus 3 --context 2000000 --kv-cache-dtype fp8 --block-size 24"))
    assert isinstance(result.exception, ConfigError)
    text = str(result.exception)
    for part in (
        "max_model_len: got 2000000, expected <= max_position_embeddings 1048576",
        "kv_cache_dtype: got 'fp8', expected 'bf16' or 'fp4' (there is no FP8 main pool)",
        "o_groups: got 8, expected a multiple of tensor-parallel size 3",
        "smallest legal block_size 16",
    ):
        assert part in text
    assert text.splitlines()[0].startswith("plan: ")


def test_an_unknown_name_lists_the_names_there_are() -> None:
    result = invoke("plan", "--draft", "maybe")
    assert isinstance(result.exception, ConfigError)
    assert "draft: got 'maybe', expected one of off, on, adaptive" in str(result.exception)


def test_a_model_of_windows_only_is_planned(tmp_path: Path) -> None:
    windows = {
        "compress_ratios": [0] * 43,
        "kv_source_layer_ids": [],
        "index_source_layer_ids": [],
        "candidate_source_layer_id": -1,
        "candidate_block_size": 0,
        "candidate_topk_blocks": 0,
    }
    path = tmp_path / "config.json"
    path.write_text(json.dumps(patched({f"text_config.{key}": value for key, value in windows.items()})))
    result = invoke("plan", path, "--ram", "64G", "--concurrency", "2")
    assert result.exit_code == 0, result.exception
    assert "5,242,880 bytes of windows, whatever its length" in result.output
