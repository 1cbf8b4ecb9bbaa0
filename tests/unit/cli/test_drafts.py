"""`--draft` and `--draft-accept` of the commands that answer, and `flash41 draft-check`."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flash41.cli.drafts import draft_facts, draft_line
from flash41.cli.main import run
from flash41.engine.events import SampledToken
from flash41.errors import ConfigError, RequestError
from flash41.tools import draft_check as draft_check_module
from flash41.tools.draft_check import Difference, DraftCheckWish, DraftRun
from helpers.command_line import invoke

pytestmark = pytest.mark.usefixtures("tiny_as_default")

SHORT = ("hi", "--max-tokens", "6", "--seed", "5", "--max-model-len", "64")


def test_a_drafted_answer_is_the_same_and_says_what_came_of_its_drafts() -> None:
    plain = json.loads(invoke("generate", *SHORT, "--json").stdout)
    for draft in ("on", "adaptive"):
        found = json.loads(invoke("generate", *SHORT, "--draft", draft, "--json").stdout)
        assert found["output_ids"] == plain["output_ids"]
        facts = found["drafts"]
        assert sum(facts["drafted_tokens"]) >= sum(facts["accepted_tokens"]) >= 0
        assert (draft == "adaptive") or facts["tokens_per_step"] >= 1
    assert "drafts" not in plain
    rejected = invoke("generate", *SHORT, "--draft", "on", "--draft-accept", "rejection", "--json")
    assert len(json.loads(rejected.stdout)["output_ids"]) == 6


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--draft", "yes"), "draft: got 'yes', expected one of off, on, adaptive"),
        (("--draft-accept", "all"), "draft_accept: got 'all', expected one of shared-noise, rejection"),
        (("--draft", "on", "--decoder-replay"), "unavailable: decoder_replay with drafts"),
        (("--draft", "on", "--profile", "atom", "--kv-cache-dtype", "fp4"), "'bf16' with DSpark"),
    ],
)
def test_what_drafting_excludes_is_refused_before_weights(arguments: tuple[str, ...], message: str) -> None:
    refused = invoke("generate", *SHORT, *arguments)
    assert isinstance(refused.exception, ConfigError)
    assert message in str(refused.exception)


def test_a_drafted_batch_has_the_results_of_an_undrafted_one(tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    body = {"prompt": "Once", "max_tokens": 8, "seed": 1}
    call = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": body}
    source.write_text(json.dumps(call) + "\n")
    texts, usages = [], []
    for name, options in (("plain", ()), ("drafted", ("--draft", "on"))):
        target = tmp_path / f"{name}.jsonl"
        result = invoke("batch", source, target, "--max-model-len", "64", *options)
        assert result.exit_code == 0, (result.output, result.exception)
        found = json.loads(target.read_text())["response"]["body"]
        texts.append(found["choices"][0]["text"])
        usages.append(found["usage"]["completion_tokens_details"])
    assert texts[0] == texts[1]
    assert result.stdout.splitlines()[1].startswith("drafts: ")
    assert usages[0] == {"reasoning_tokens": 0}
    assert set(usages[1]) == {"reasoning_tokens", "accepted_prediction_tokens", "rejected_prediction_tokens"}
    assert usages[1]["rejected_prediction_tokens"] > 0
    # The other rule gives other texts, so it is another batch.
    other = invoke("batch", source, target, "--draft", "on", "--draft-accept", "rejection")
    assert isinstance(other.exception, RequestError)


def test_a_drafted_bench_tells_of_its_drafts() -> None:
    arguments = ("--prompt-tokens", "4", "--output-tokens", "4", "--requests", "1", "--draft", "on")
    facts = json.loads(invoke("bench", "latency", *arguments, "--json").stdout)["drafts"]
    assert sum(facts["drafted_tokens"]) > 0
    assert invoke("bench", "latency", *arguments).stdout.splitlines()[0].startswith("drafts: ")


def test_statistics_say_what_came_of_drafts() -> None:
    stats = SimpleNamespace(num_draft_blocks=0, num_block_tokens=0, drafted_tokens=(), accepted_tokens=())
    assert draft_line(stats) == "drafts: none"
    assert draft_facts(stats)["tokens_per_step"] is None
    stats = SimpleNamespace(num_draft_blocks=4, num_block_tokens=6, drafted_tokens=(4, 3), accepted_tokens=(2, 0))
    assert draft_line(stats) == "drafts: 2 of 7 accepted, 1.50 tokens per step"
    assert draft_facts(stats) == {
        "num_draft_tokens": 7,
        "num_accepted_tokens": 2,
        "drafted_tokens": [4, 3],
        "accepted_tokens": [2, 0],
        "tokens_per_step": 1.5,
    }


def runs(difference: Difference | None) -> list[DraftRun]:
    off = DraftRun(name="off", tokens_per_second=10.0, ratio=1.0, tokens_per_step=None, acceptance=(), difference=None)
    on = DraftRun(
        name="on", tokens_per_second=15.0, ratio=1.5, tokens_per_step=2.5, acceptance=(0.5, 0.25), difference=difference
    )
    return [off, on]


DIFFERENCE = Difference(
    prompt=1, temperature=1.0, index=3, expected=SampledToken(token_id=7), got=SampledToken(token_id=9)
)


@pytest.mark.parametrize(("difference", "status"), [(None, 0), (DIFFERENCE, 1)])
def test_a_check_shows_every_run_and_fails_on_a_difference(
    difference: Difference | None, status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[Any] = []

    def check(wish: DraftCheckWish, progress: object) -> list[DraftRun]:
        asked.append(wish)
        return runs(difference)

    monkeypatch.setattr(draft_check_module, "check_drafts", check)
    assert run(["draft-check", "somewhere", "--max-tokens", "5", "--profile", "fp32"]) == status
    shown = capsys.readouterr().out
    assert (asked[0].model, asked[0].max_tokens, asked[0].profile) == (Path("somewhere"), 5, "fp32")
    assert shown.splitlines()[2].split()[:6] == ["on", "2.50", "50%", "25%", "15.0", "1.50"]
    assert ("differ: prompt 1 at temperature 1, token 3: got 9, expected 7" in shown) == bool(status)
    assert run(["draft-check", "somewhere", "--json"]) == status
    found = json.loads(capsys.readouterr().out)
    assert found["equal"] == (not status)
    assert found["runs"][1]["acceptance"] == [0.5, 0.25]


def test_prompts_of_a_check_come_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text("one\ntwo\nthree\n")
    asked: list[DraftCheckWish] = []

    def check(wish: DraftCheckWish, _: object) -> list[DraftRun]:
        asked.append(wish)
        return runs(None)

    monkeypatch.setattr(draft_check_module, "check_drafts", check)
    result = invoke("draft-check", "--prompts", file)
    assert result.exit_code == 0
    assert asked[0].prompts == ("one", "two", "three")
    assert asked[0].model is None
    assert "6 answers per run" in result.stdout
