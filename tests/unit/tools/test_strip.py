import json

import pytest

from flash41.config.huggingface import config_from_dict
from flash41.config.topology import topology
from flash41.tools.strip import NONE, index_groups, strip
from helpers.config_documents import release_config, text_patched, tiny_config, topology_vectors


def column(rows: dict[str, list[str]], label: str, index: int) -> str:
    """Digits of one layer, read from top to bottom."""
    return "".join(line[index] for line in rows[label]).strip()


def lines(part: str) -> dict[str, list[str]]:
    """Lines of the release's strip by label; a line without one belongs to the label below it."""
    found: dict[str, list[str]] = {}
    upper: list[str] = []
    for row in strip(topology(release_config())):
        upper.append(getattr(row, part))
        if row.label:
            found[row.label] = upper
            upper = []
    assert not upper
    return found


@pytest.mark.parametrize("part", ["layers", "drafts"])
def test_every_cell_of_the_release_says_what_the_vectors_say(part: str) -> None:
    rows = lines(part)
    expected = [layer for layer in topology_vectors()["layers"] if layer.get("draft", False) == (part == "drafts")]
    letters = {"WINDOW": "W", "FULL": "F", "REINDEX": "I", "REUSE": "U"}
    for index, layer in enumerate(expected):
        assert column(rows, "layer", index) == str(layer["layer"])
        assert column(rows, "mode", index) == letters[layer["mode"]]
        assert column(rows, "ratio", index) == str(layer["ratio"])
        for label, key in (("KV owner", "kv_owner"), ("top-k owner", "topk_owner")):
            owner = layer[key]
            assert column(rows, label, index) == (NONE if owner is None else str(owner))
        candidates = "C" if layer["produces_candidates"] else "c" if layer["bounded_by_candidates"] else NONE
        assert column(rows, "candidates", index) == candidates
        assert column(rows, "Engram", index) == ("E" if layer["engram"] else NONE)
        assert column(rows, "tap", index) == ("T" if layer["dspark_tap"] else NONE)


def test_all_lines_of_a_strip_have_one_cell_per_layer() -> None:
    for config in (release_config(), tiny_config()):
        for row in strip(topology(config)):
            assert (len(row.layers), len(row.drafts)) == (config.num_layers, config.dspark.num_stages)


def test_a_small_model_needs_one_digit_for_its_owners() -> None:
    rows = strip(topology(tiny_config()))
    assert [row.label for row in rows].count("KV owner") == 1
    assert next(row for row in rows if row.label == "mode").layers.startswith("W")


def test_groups_are_those_of_the_vectors() -> None:
    groups = index_groups(topology(release_config()))
    assert [
        {
            "start": group.start,
            "size": group.size,
            "ratio": group.ratio,
            "kv_owner": group.kv_owner,
            "topk_owner": group.topk_owner,
            "modes": [mode.value for mode in group.modes],
        }
        for group in groups
    ] == topology_vectors()["groups"]
    assert [group.is_draft for group in groups] == [False] * 9 + [True]


def test_a_group_is_summed_up_in_words() -> None:
    groups = index_groups(topology(release_config()))
    assert [group.summary for group in groups[:2]] == ["2 WINDOW", "FULL + 5 REUSE"]
    assert groups[-1].summary == "3 WINDOW"


def test_without_a_candidate_source_the_row_is_empty() -> None:
    config = config_from_dict(json.loads(json.dumps(text_patched({"candidate_source_layer_id": -1}))))
    row = next(row for row in strip(topology(config)) if row.label == "candidates")
    assert set(row.layers) == {NONE}
