import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from flash41.engine import drafting
from flash41.engine.events import SampledToken, Verified
from flash41.engine.llm import LLM
from flash41.engine.request import SamplingParams
from flash41.errors import ConfigError, RequestError
from flash41.tools.draft_check import DraftCheckWish, check_drafts, read_prompts
from helpers.config_documents import patched, tiny_text

WISH = {"prompts": ("once",), "max_tokens": 7, "threads": 1}
WIDTH = 5


def test_runs_are_equal_and_forced_ones_accept_what_they_are_forced_to(tiny_directory: Path) -> None:
    said: list[str] = []
    runs = check_drafts(DraftCheckWish(model=tiny_directory, **WISH), said.append)  # type: ignore[arg-type]
    names = ["off", "on", *(f"forced {count}" for count in range(WIDTH + 1))]
    assert [run.name for run in runs] == said == names
    assert [run.difference for run in runs] == [None] * len(names)
    assert (runs[0].tokens_per_step, runs[0].ratio, runs[0].acceptance) == (None, 1.0, ())
    for count, run in enumerate(runs[2:]):
        right, rest = run.acceptance[:count], run.acceptance[count:]
        assert right == (1.0,) * count
        assert rest == (0.0,) * len(rest)
    # Behind the first token there are six: blocks of one, of two, ..., one of six; a single last one needs no drafts.
    assert [run.tokens_per_step for run in runs[2:]] == [1.0, 2.0, 3.0, 3.0, 5.0, 6.0]
    assert all(run.tokens_per_second > 0 for run in runs)


def test_a_rule_that_accepts_everything_is_found(tiny_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def believing(_: object, __: object, drafts: Sequence[int], ___: object) -> Verified:
        tokens = tuple(SampledToken(token_id=token) for token in (*drafts, 3))
        return Verified(tokens=tokens, num_accepted=len(drafts))

    monkeypatch.setattr(drafting.Drafting, "_judge", believing)
    wish = DraftCheckWish(model=tiny_directory, temperatures=(1.0,), **WISH)  # type: ignore[arg-type]
    found = check_drafts(wish)[1].difference
    assert found is not None
    assert (found.prompt, found.temperature, found.index) == (0, 1.0, 1)  # the first token comes from the prompt
    assert found.expected is not None
    assert found.got is not None
    assert found.expected != found.got


@pytest.mark.parametrize("ignores", [False, True])
def test_answers_may_go_on_behind_their_end(
    ignores: bool, tiny_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[SamplingParams] = []

    def noted(self: LLM, ids: object, params: SamplingParams) -> None:
        seen.append(params)
        raise RequestError("noted")

    monkeypatch.setattr(LLM, "request", noted)
    with pytest.raises(RequestError, match="noted"):
        check_drafts(DraftCheckWish(model=tiny_directory, ignore_eos=ignores, **WISH))  # type: ignore[arg-type]
    assert [params.ignore_eos for params in seen] == [ignores]


def test_prompts_are_the_lines_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text("one\n\n  \ntwo words\n", encoding="utf-8")
    assert read_prompts(file) == ("one", "two words")


def test_a_file_without_prompts_is_refused(tmp_path: Path) -> None:
    empty = tmp_path / "empty.txt"
    empty.write_text(" \n", encoding="utf-8")
    with pytest.raises(RequestError, match="at least one line with text"):
        read_prompts(empty)
    with pytest.raises(RequestError, match="a readable text file"):
        read_prompts(tmp_path / "absent")


def test_a_model_without_draft_stages_is_refused_before_its_weights(tmp_path: Path) -> None:
    bare = {"text_config.num_nextn_predict_layers": 0, "text_config.dspark_target_layer_ids": []}
    document = patched(bare, json.loads(tiny_text()))
    ratios = document["text_config"]["compress_ratios"]
    document["text_config"]["compress_ratios"] = ratios[: document["text_config"]["num_hidden_layers"]]
    (tmp_path / "config.json").write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(ConfigError, match="this checkpoint has no draft stages"):
        check_drafts(DraftCheckWish(model=tmp_path))
