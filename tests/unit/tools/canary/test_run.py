from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flash41.config.huggingface import read_config
from flash41.engine.llm import LLM
from flash41.errors import RequestError
from flash41.tools.ablations import ABLATIONS, Ablations
from flash41.tools.canary.conversations import read_set
from flash41.tools.canary.run import CanaryResult, CanaryWish, canary

FAMILY = "copying"


class Opened:
    """Opens a model and notes how."""

    def __init__(self, directory: Path, **options: Any) -> None:
        self.directory = directory
        self.options = {"max_model_len": 512, "threads": 1, **options}
        self.calls: list[tuple[Ablations | None, dict[str, Any]]] = []

    def __call__(self, change: Ablations | None, **changes: Any) -> LLM:
        self.calls.append((change, changes))
        return LLM(self.directory, change=change, **{**self.options, **changes})


def asked(opened: Opened, progress: Any = None, **wish: Any) -> CanaryResult:
    drafting = opened.options.get("draft", "off") != "off"
    whole = CanaryWish(**{"families": (FAMILY,), "num_samples": 1, **wish})
    return canary(whole, read_set(), read_config(opened.directory), opened, "vendor", drafting, progress)


def names(change: Ablations | None) -> list[str]:
    return [] if change is None else [name for name, one in ABLATIONS.items() if one in change.ablations]


def test_a_model_is_scored_as_it_is(tiny_directory: Path) -> None:
    opened, told = Opened(tiny_directory), list[tuple[str, int, int]]()
    found = asked(opened, lambda *what: told.append(what))
    assert found.scores.families[FAMILY].asked == 1
    assert (found.ablations, found.perplexities, found.drafts) == ({}, {}, None)
    assert opened.calls == [(None, {})]
    assert told == [("scores", 0, 1), ("scores", 1, 1)]


def test_what_is_left_out_is_left_out_at_once(tiny_directory: Path) -> None:
    opened = Opened(tiny_directory)
    asked(opened, without=("window", "engram"))
    assert [names(change) for change, _ in opened.calls] == [["engram", "window"]]


def test_every_mechanism_is_left_out_in_turn(tiny_directory: Path) -> None:
    opened = Opened(tiny_directory)
    found = asked(opened, all_ablations=True)
    expected = [name for name in ABLATIONS if name != "drafts"]  # nothing is drafted anyway
    assert list(found.ablations) == expected
    assert [names(change) for change, _ in opened.calls] == [[], *([name] for name in expected)]


def test_drafts_are_left_out_where_there_are_some(tiny_directory: Path) -> None:
    with pytest.raises(RequestError, match="--without drafts: got '--draft off'"):
        asked(Opened(tiny_directory), without=("drafts",))
    opened = Opened(tiny_directory, draft="on")
    asked(opened, without=("drafts",))
    assert opened.calls[0][1] == {"draft": "off", "draft_accept": None}


def test_perplexity_is_measured_under_the_profiles_that_are_asked_for(tiny_directory: Path) -> None:
    assert set(asked(Opened(tiny_directory), perplexity=True).perplexities) == {"vendor"}
    opened = Opened(tiny_directory)
    found = asked(opened, profiles=True).perplexities
    assert list(found) == ["vendor", "atom", "fp32"]
    assert all(set(values) == {FAMILY, "all"} for values in found.values())
    assert len({values["all"] for values in found.values()}) == 3
    pools = {"kv_cache_dtype": None, "index_cache_dtype": None}
    assert [changes for _, changes in opened.calls[1:]] == [
        {"profile": "atom", **pools},
        {"profile": "fp32", **pools},
    ]


def test_drafts_are_measured_on_engines_of_their_own(tiny_directory: Path) -> None:
    opened = Opened(tiny_directory)
    found = asked(opened, drafts=True).drafts
    assert found is not None
    assert found.answers == 1
    assert [changes.get("draft") for _, changes in opened.calls] == [None, "on", "off"]


def test_drafts_of_a_model_that_has_none_are_refused_at_once(tiny_directory: Path) -> None:
    opened, config = Opened(tiny_directory), read_config(tiny_directory)
    bare = replace(config, dspark=replace(config.dspark, num_stages=0))
    with pytest.raises(RequestError, match="draft stages of the model: got 0, expected at least one for --drafts"):
        canary(CanaryWish(drafts=True), read_set(), bare, opened, "vendor", is_drafting=False)
    assert opened.calls == []


def test_wishes_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(RequestError) as caught:
        CanaryWish(without=("engram",), all_ablations=True, drafts=True)
    assert "--all-ablations with --without" in str(caught.value)
    assert "--drafts with --without" in str(caught.value)


def test_names_are_checked_before_a_model_is_opened(tiny_directory: Path) -> None:
    for wish in ({"families": ("fact",)}, {"without": ("ngrams",)}, {"num_samples": 0}):
        opened = Opened(tiny_directory)
        with pytest.raises(RequestError):
            asked(opened, **wish)
        assert opened.calls == []
