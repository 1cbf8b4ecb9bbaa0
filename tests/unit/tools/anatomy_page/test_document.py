"""The document of the page: JSON, complete, in numbers of the ledger."""

import json
from typing import Any

from flash41.tools.anatomy import Anatomy
from flash41.tools.anatomy_page.document import page_document


def facts(document: dict[str, Any]) -> dict[str, Any]:
    return {fact["label"]: fact["value"] for fact in document["facts"]}


def test_it_is_json(tiny: Anatomy, release_document: dict[str, Any]) -> None:
    for document in (release_document, page_document(tiny, "tiny")):
        assert json.loads(json.dumps(document, allow_nan=False))["title"] == document["title"]
        assert document["trace"] is None


def test_the_head_of_the_release_tells_the_published_numbers(release_document: dict[str, Any]) -> None:
    found = facts(release_document)
    assert found["parameters"] == 763_205_315_794
    assert found["active per token"] == 16_792_502_384
    assert found["on disk"] == 510_286_023_000
    assert found["layers"] == "40 + 3"
    assert found["experts"] == "6 of 384"
    assert found["rows per query"] == "128 + 512"
    assert found["reuse a selection"] == "30 of 40"
    assert (found["cache per token"], found["per request"]) == (2730, 5_276_672)


def test_numbers_are_of_the_configuration_given(tiny: Anatomy) -> None:
    found = facts(page_document(tiny, "tiny"))
    assert found["parameters"] == tiny.ledger.total.num_parameters
    assert found["hidden"] == "4 x 128"
