import json
import sys
from pathlib import Path
from typing import Any

import pytest
import typer.testing

from flash41.chat.conversation import ChatCodec, Message
from flash41.chat.tokenizer import Tokenizer
from flash41.cli.main import build_app, run
from flash41.engine.llm import LLM
from flash41.engine.request import SamplingParams
from flash41.errors import ConfigError, Flash41Error, KernelError, RequestError
from helpers.command_line import invoke
from helpers.golden_judge import CHECKPOINT
from helpers.image_files import encoded, pattern
from helpers.scripted import SAMPLER, scripted
from helpers.tiny_tokenizer import TINY_IMAGE_ID, TINY_TOKENIZER

BOS, EOS = 0, 1
SHORT = ("--max-tokens", "4", "--seed", "5")

pytestmark = pytest.mark.usefixtures("tiny_as_default")


@pytest.fixture(scope="module")
def codec() -> ChatCodec:
    return ChatCodec.from_directory(TINY_TOKENIZER, TINY_IMAGE_ID)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(TINY_TOKENIZER / "tokenizer.json")


def document(*arguments: str | Path) -> dict[str, Any]:
    """What `--json` prints."""
    result = invoke("generate", *arguments, "--json")
    assert result.exit_code == 0, (result.output, result.exception)
    assert result.stdout.count("\n") == 1
    found: dict[str, Any] = json.loads(result.stdout)
    return found


# What is printed.


def test_json_holds_ids_text_reason_seed_and_timings(tokenizer: Tokenizer) -> None:
    found = document("hi", *SHORT)
    assert list(found) == ["prompt_ids", "output_ids", "text", "reasoning", "finish_reason", "seed", "timings"]
    assert list(found["timings"]) == ["first_token_seconds", "total_seconds", "tokens_per_second"]
    assert len(found["output_ids"]) == 4
    assert found["text"] == tokenizer.decode(found["output_ids"])
    assert (found["reasoning"], found["finish_reason"], found["seed"]) == (None, "length", 5)
    assert 0 < found["timings"]["first_token_seconds"] < found["timings"]["total_seconds"]


def test_a_single_token_has_no_rate() -> None:
    assert document("hi", "--max-tokens", "1")["timings"]["tokens_per_second"] is None


def test_plain_output_is_the_text_and_a_line_end() -> None:
    result = invoke("generate", "hi", *SHORT)
    assert result.exit_code == 0, result.exception
    assert (result.stdout, result.stderr) == (document("hi", *SHORT)["text"] + "\n", "")


def test_a_terminal_also_sees_a_summary(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert run(["generate", "hi", *SHORT]) == 0
    summary = capsys.readouterr().err
    assert summary.startswith("[4 tokens, length, ")
    assert summary.endswith(" tokens/s, seed 5]\n")


def test_reasoning_stands_in_its_own_tags(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    end_of_thinking = tokenizer.id_of("</think>")
    assert end_of_thinking is not None
    script = (300, 301, end_of_thinking, 302, EOS)
    first, second, third = map(tokenizer.token_text, (300, 301, 302))
    monkeypatch.setattr(SAMPLER, scripted(*script))
    assert invoke("generate", "hi", "--thinking").stdout == f"<think>{first}{second}</think>\n{third}\n"
    monkeypatch.setattr(SAMPLER, scripted(*script))
    found = document("hi", "--thinking")
    assert (found["reasoning"], found["text"], found["finish_reason"]) == (first + second, third, "stop")
    assert found["output_ids"] == list(script)


@pytest.mark.parametrize("form", [(), ("--raw",)], ids=["chat", "raw"])
def test_eos_is_no_part_of_the_text(
    form: tuple[str, ...], tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SAMPLER, scripted(300, EOS))
    found = document("hi", *form)
    assert (found["text"], found["output_ids"]) == (tokenizer.token_text(300), [300, EOS])


@pytest.mark.parametrize("form", [(), ("--raw",)], ids=["chat", "raw"])
def test_characters_are_written_whole_and_a_broken_one_at_the_end(
    form: tuple[str, ...], tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    single = {tokenizer.token_bytes(token_id): token_id for token_id in range(3, 259)}
    ids = [single[bytes([byte])] for byte in ("a\u20ac".encode() + "\u20ac".encode()[:2])]
    monkeypatch.setattr(SAMPLER, scripted(*ids))
    assert document("hi", *form, "--max-tokens", "6")["text"] == "a\u20ac\ufffd"


# What is sent.


@pytest.mark.parametrize(
    ("options", "thinking", "effort", "system"),
    [
        ((), False, None, None),
        (("--system", "Be brief."), False, None, "Be brief."),
        (("--thinking",), True, None, None),
        (("--thinking", "--effort", "low"), True, "low", None),
        (("--thinking", "--effort", "33", "--system", ""), True, 33, ""),
    ],
    ids=str,
)
def test_a_prompt_is_rendered_as_the_codec_renders_it(
    options: tuple[str, ...], thinking: bool, effort: str | int | None, system: str | None, codec: ChatCodec
) -> None:
    messages = [Message(role="user", content="Why <think>?")]
    if system is not None:
        messages.insert(0, Message(role="system", content=system))
    expected = codec.encode(codec.conversation(messages, thinking=thinking, effort=effort))
    found = document("Why <think>?", *options, "--max-tokens", "1")
    assert tuple(found["prompt_ids"]) == expected.ids


def test_a_raw_text_stands_behind_bos_with_its_control_tokens(tokenizer: Tokenizer) -> None:
    text = f"hi{tokenizer.token_text(EOS)}"
    found = document(text, "--raw", "--max-tokens", "1")
    assert found["prompt_ids"] == [BOS, *tokenizer.encode("hi"), EOS]
    assert document("", "--raw", "--max-tokens", "1")["prompt_ids"] == [BOS]


@pytest.mark.parametrize("spelling", ["0,17,42", "0, 17, 42", "0 17 42", "0,17,42,"])
def test_token_ids_are_sent_as_they_are(spelling: str) -> None:
    assert document("--token-ids", spelling, "--max-tokens", "1")["prompt_ids"] == [0, 17, 42]


def piped(content: str | bytes, *arguments: str) -> typer.testing.Result:
    return typer.testing.CliRunner().invoke(build_app(), ["generate", "-", *arguments], input=content)


def test_a_dash_reads_standard_input_to_its_end(tokenizer: Tokenizer) -> None:
    result = piped("two\nlines\n", "--raw", "--json", "--max-tokens", "1")
    assert json.loads(result.stdout)["prompt_ids"] == [BOS, *tokenizer.encode("two\nlines\n")]


def test_standard_input_that_is_no_text_is_a_usage_error() -> None:
    result = piped(b"\xff\xfe", "--raw")
    assert result.exit_code == 2
    assert "standard input: " in result.stderr
    assert "expected text" in result.stderr


def test_another_checkpoint_and_profile_can_be_named() -> None:
    found = document(
        "--token-ids", "0,5", "--model", CHECKPOINT, "--profile", "fp32", "--temperature", "0", "--max-tokens", "3"
    )
    llm = LLM(CHECKPOINT, profile="fp32")
    (expected,) = llm.generate([[0, 5]], SamplingParams(temperature=0, max_tokens=3))
    assert tuple(found["output_ids"]) == expected.output_ids


def test_the_answer_is_that_of_the_python_api_whatever_the_rows_of_a_step(tiny_directory: Path) -> None:
    params = SamplingParams(max_tokens=4, temperature=0.8, top_p=0.7, seed=11)
    (expected,) = LLM(tiny_directory).generate("Once upon a time", params)
    given = ("Once upon a time", "--raw", "--max-tokens", "4", "--temperature", "0.8", "--top-p", "0.7", "--seed", "11")
    for rows in ("512", "3"):
        found = document(*given, "--max-num-batched-tokens", rows)
        assert tuple(found["output_ids"]) == expected.output_ids


# Seeds.


def test_a_seed_repeats_an_answer_and_another_gives_another() -> None:
    first, again, other = (document("hi", "--max-tokens", "8", "--seed", seed) for seed in ("5", "5", "6"))
    assert first["output_ids"] == again["output_ids"]
    assert first["output_ids"] != other["output_ids"]


def test_a_drawn_seed_is_told_and_repeats_the_answer() -> None:
    drawn, other = (document("hi", "--max-tokens", "6") for _ in range(2))
    assert drawn["seed"] != other["seed"]
    assert document("hi", "--max-tokens", "6", "--seed", str(drawn["seed"]))["output_ids"] == drawn["output_ids"]


# What is refused.


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "give a prompt or --token-ids, one of them"),
        (("hi", "--token-ids", "1"), "give a prompt or --token-ids, one of them"),
        (("--token-ids", "1", "--raw"), "ids are sent as they are"),
        (("--token-ids", "1", "--thinking"), "ids are sent as they are"),
        (("--token-ids", "1", "--system", "x"), "ids are sent as they are"),
        (("hi", "--raw", "--system", "x", "--thinking"), "excludes --thinking, --system"),
        (("hi", "--effort", "low"), "needs --thinking"),
        (("hi", "--thinking", "--effort", "101"), "got '101', expected low, high, max or a number from 1 to 100"),
        (("hi", "--thinking", "--effort", "--5"), "got '--5', expected low, high, max or a number from 1 to 100"),
        (("hi", "--thinking", "--effort", "foo"), "got 'foo', expected low, high, max or a number from 1 to 100"),
        (("hi", "--thinking", "--effort", "9" * 5000), "expected low, high, max or a number from 1 to 100"),
        (("--token-ids", "1,x"), "got 'x', expected integers separated by commas"),
        (("--token-ids", "1,--5"), "got '--5', expected integers"),
        (("--token-ids", "1,\u00b2"), "got '\u00b2', expected integers"),
        (("--token-ids", " , "), "expected at least one integer"),
        (("--token-ids", "9" * 5000), "expected integers separated by commas"),
        (("hi", "--max-tokens", "many"), "Invalid value for '--max-tokens'"),
        (("hi", "--temprature", "1"), "--temprature"),
    ],
    ids=str,
)
def test_wrong_usage_ends_with_status_2_and_says_what_is_wrong(arguments: tuple[str, ...], message: str) -> None:
    result = invoke("generate", *arguments)
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.split())
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (("hi", "--max-tokens", "0"), RequestError, "max_tokens: got 0, expected an integer of at least 1"),
        (("hi", "--temperature", "nan"), RequestError, "temperature: got nan, expected a number from 0 to 2"),
        (("hi", "--seed", "-1"), RequestError, "seed: got -1"),
        (("--token-ids", "0,1024"), RequestError, "token ids: got [1024], expected integers from 0 to 1023"),
        (("--token-ids", "-1"), RequestError, "token ids: got [-1]"),
        (("hi", "--max-model-len", "3"), RequestError, "expected fewer tokens than max_model_len 3"),
        (("hi", "--max-model-len", "0"), ConfigError, "max_model_len: got 0, expected > 0"),
        (("hi", "--max-num-batched-tokens", "0"), ConfigError, "max_num_batched_tokens: got 0"),
        (("hi", "--profile", "fast"), ConfigError, "profile: got 'fast', expected one of vendor, atom, fp32, demo"),
        (("hi", "--kv-cache-dtype", "fp8"), ConfigError, "kv_cache_dtype: got 'fp8', expected 'bf16' or 'fp4'"),
        (("hi", "--index-cache-dtype", "x"), ConfigError, "index_cache_dtype: got 'x'"),
        (("hi", "--backend", "cuda"), KernelError, "backend: got 'cuda', expected one of auto, reference"),
        (("hi", "--threads", "0"), ConfigError, "threads: got 0, expected > 0"),
        (("hi", "--threads", "1000000000"), ConfigError, "threads: got 1000000000, expected <= 1024"),
        (("hi", "--model", "no/where"), ConfigError, "no/where: expected a file"),
    ],
    ids=str,
)
def test_what_a_user_can_cause_names_value_and_condition(
    arguments: tuple[str, ...], error: type[Flash41Error], message: str
) -> None:
    result = invoke("generate", *arguments)
    assert type(result.exception) is error
    assert message in str(result.exception)
    assert result.stdout == ""


def test_such_an_error_is_one_line_and_status_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["generate", "hi", "--temperature", "9"]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "error: temperature: got 9.0, expected a number from 0 to 2\n"


# Pictures.


@pytest.fixture
def pictures(tmp_path: Path) -> list[Path]:
    files = [tmp_path / "a.png", tmp_path / "b.webp"]
    files[0].write_bytes(encoded(pattern(60, 45)))
    files[1].write_bytes(encoded(pattern(200, 50), "WEBP", lossless=True))
    return files


def test_pictures_stand_in_front_of_the_text_and_their_cost_is_told(pictures: list[Path], tokenizer: Tokenizer) -> None:
    found = document("hi", "--image", pictures[0], "--image", pictures[1], *SHORT)
    costs = [image["tokens"] for image in found["images"]]
    assert costs == [10, 14]
    assert found["images"][0] == {"file": str(pictures[0]), "tokens": 10, "width": 98, "height": 84}
    assert found["prompt_ids"].count(TINY_IMAGE_ID) == sum(costs)
    assert found["prompt_ids"].index(TINY_IMAGE_ID) == 2  # behind BOS and the user's token
    assert "undrafted_because" not in found
    again = document("hi", "--image", pictures[1], "--image", pictures[0], *SHORT)
    assert again["output_ids"] != found["output_ids"] or again["prompt_ids"] != found["prompt_ids"]


def test_ids_have_a_placeholder_for_each_picture(pictures: list[Path]) -> None:
    found = document("--token-ids", f"0,5,{TINY_IMAGE_ID},6", "--image", pictures[0], *SHORT)
    assert found["prompt_ids"] == [0, 5, *[TINY_IMAGE_ID] * 10, 6]
    refused = invoke("generate", "--token-ids", "0,5", "--image", pictures[0])
    assert isinstance(refused.exception, RequestError)
    assert "placeholders of images (id 1015): got 0, expected one for each of 1 images" in str(refused.exception)


def test_an_answer_to_pictures_says_that_it_was_not_drafted(pictures: list[Path]) -> None:
    found = document("hi", "--image", pictures[0], "--draft", "on", *SHORT)
    assert found["undrafted_because"] == "images in the request"
    assert found["drafts"]["drafted_tokens"] == []


@pytest.mark.parametrize("name", ["missing.png", "text.png"])
def test_a_file_that_is_no_picture_is_refused_by_its_name(tmp_path: Path, name: str) -> None:
    (tmp_path / "text.png").write_text("text")
    refused = invoke("generate", "hi", "--image", tmp_path / name)
    assert isinstance(refused.exception, RequestError)
    assert name in str(refused.exception)
