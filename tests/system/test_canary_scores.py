"""What the card of the embedded default promises of its answers.

    card.json   {"canary": {"samples": 12,
                            "at_least": {"facts": 0.9, ...},
                            "needs": {"engram": {"families": ["recall"], "above_chance": 0.1, "others_lose": 0.05}}}}

`samples` questions of each family are asked, always the same ones.  Every family of `at_least` scores as much.  Without
a mechanism of `needs` its families score at most that much above chance, and no other family loses more than
`others_lose`, where that is said.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from flash41.config.huggingface import read_config
from flash41.engine.llm import LLM
from flash41.tools.canary.conversations import read_set
from flash41.tools.canary.run import CanaryWish, canary

Promises = dict[str, Any]


@pytest.fixture(scope="module")
def promises(default_directory: Path) -> Promises:
    found: Promises = json.loads((default_directory / "card.json").read_text(encoding="utf-8"))["canary"]
    return found


def scored(directory: Path, promises: Promises, *without: str) -> dict[str, float]:
    wish = CanaryWish(num_samples=promises["samples"], without=without)
    opened = canary(
        wish,
        read_set(),
        read_config(directory),
        lambda change, **changes: LLM(directory, change=change, threads=1, **changes),
        "vendor",
        is_drafting=False,
    )
    assert opened.scores.left_out == {}
    return opened.scores.fractions


@pytest.fixture(scope="module")
def whole(default_directory: Path, promises: Promises) -> dict[str, float]:
    return scored(default_directory, promises)


def test_every_family_scores_what_the_card_says(whole: dict[str, float], promises: Promises) -> None:
    assert set(promises["at_least"]) == set(whole)
    assert {family: whole[family] for family, least in promises["at_least"].items() if whole[family] < least} == {}


def test_families_need_the_mechanisms_the_card_names(
    default_directory: Path, whole: dict[str, float], promises: Promises
) -> None:
    families = read_set().families
    for mechanism, said in promises["needs"].items():
        found = scored(default_directory, promises, mechanism)
        for family in found:
            where = f"{family} without {mechanism}: {found[family]:.2f}, whole {whole[family]:.2f}"
            if family in said["families"]:
                assert found[family] <= families[family].chance + said["above_chance"], where
            elif "others_lose" in said:
                assert found[family] >= whole[family] - said["others_lose"], where
