"""What the page says of layers, modes and groups."""

from flash41.tools.anatomy import Anatomy
from flash41.tools.anatomy_page.layers import group_records, layer_records, mode_records, ranges


def test_every_layer_of_the_release_is_told(release: Anatomy) -> None:
    records = layer_records(release)
    assert len(records) == 43
    assert (records[40]["label"], records[40]["draft"]) == ("mtp.0", True)
    assert [r["id"] for r in records if r["engram"]] == [1, 14]
    assert [r["id"] for r in records if r["tap"]] == [37, 38, 39]
    assert [r["id"] for r in records if r["candidates"]] == [20, 24, 28, 32, 36]
    assert (records[20]["candidates"], records[24]["candidates"]) == ("makes", "uses")


def test_a_reindex_layer_reads_and_scores_the_plane_of_its_owner(release: Anatomy) -> None:
    record = layer_records(release)[24]
    assert record["writes"] == [
        "its own window: one row of 512 per token",
        "a selection: at most 512 row numbers per token",
    ]
    assert record["reads"] == [
        "its own window: at most 128 rows",
        "the plane of layer 20: at most 512 rows",
        "the candidate blocks of layer 20",
    ]
    assert record["scores"] == "at most 16384 rows of layer 20's index plane"
    assert record["extra_parameters"] == 5_406_720
    assert record["read_by"] == "25-27 (its selection)"


def test_an_owner_is_read_by_all_behind_it(release: Anatomy) -> None:
    records = layer_records(release)
    assert records[20]["read_by"] == "21-39 (its plane); 21-23 (its selection)"
    assert records[0]["read_by"] == ""
    assert records[3]["scores"] == "nothing"


def test_modes_are_counted_and_cost_what_the_specification_says(release: Anatomy) -> None:
    found = {record["mode"]: record for record in mode_records(release)}
    assert {mode: record["num_layers"] for mode, record in found.items()} == {
        "WINDOW": 2,
        "FULL": 4,
        "REINDEX": 4,
        "REUSE": 30,
    }
    assert found["FULL"]["extra_parameters"] == [8_094_336, 10_715_776]
    assert found["REUSE"]["layers"] == "3-7, 9-13, 15-19, 21-23, 25-27, 29-31, 33-35, 37-39"
    assert (found["WINDOW"]["num_drafts"], found["REINDEX"]["bounded"]) == (3, True)


def test_groups_are_those_of_the_topology(release: Anatomy) -> None:
    records = group_records(release)
    assert [record["layers"] for record in records][:3] == ["0-1", "2-7", "8-13"]
    assert records[-1]["draft"] is True
    assert len(records) == len(release.groups)


def test_neighbours_are_written_as_runs() -> None:
    assert ranges([0, 1, 2, 5, 7, 8]) == "0-2, 5, 7-8"
    assert ranges([]) == ""
