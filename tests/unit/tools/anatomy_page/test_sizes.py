"""The numbers of the treemap are the ledger's."""

from typing import Any

import pytest

from flash41.checkpoint.stored import Subsystem
from flash41.tools.anatomy import Anatomy
from flash41.tools.anatomy_page.sizes import ACTIVE_WORDS, USERS, WORDS, sizes
from flash41.tools.ledger_rows import Storage


@pytest.mark.parametrize("model", ["release", "tiny"])
def test_leaves_owners_and_formats_add_up_to_the_total(model: str, request: pytest.FixtureRequest) -> None:
    found: dict[str, Any] = sizes(request.getfixturevalue(model))
    for rows in ("leaves", "owners", "storage"):
        for key in ("parameters", "bytes", "tensors"):
            assert sum(row[key] for row in found[rows]) == found["total"][key], (rows, key)
    assert sum(part["parameters"] for part in found["active"]) == found["active_total"]


def test_the_release_has_the_published_totals(release: Anatomy) -> None:
    found: dict[str, Any] = sizes(release)
    assert found["total"] == {"tensors": 96_085, "parameters": 763_205_315_794, "bytes": 510_286_023_000}
    assert found["active_total"] == 16_792_502_384
    assert found["active_encoder"] == 7_892_875_448
    leaves = {leaf["label"]: leaf["parameters"] for leaf in found["leaves"]}
    assert (leaves["routed experts"], leaves["Engram tables"]) == (543_581_798_400, 196_613_849_600)
    assert leaves["drafter: routed experts"] == 13_589_544_960


def test_everything_has_a_word(release: Anatomy) -> None:
    assert set(WORDS) == set(Subsystem)
    assert set(USERS) == set(Storage)
    assert len(ACTIVE_WORDS) == len(sizes(release)["active"])  # type: ignore[arg-type]
    labels = [leaf["label"] for leaf in sizes(release)["leaves"]]  # type: ignore[attr-defined]
    assert len(set(labels)) == len(labels)
