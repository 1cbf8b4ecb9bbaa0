"""PAGE and STATE as segments that leave no byte out."""

from typing import Any

import pytest

from flash41.tools.anatomy import Anatomy
from flash41.tools.anatomy_page.memory import memory


def pools(anatomy: Anatomy) -> list[dict[str, Any]]:
    found: Any = memory(anatomy)["pools"]
    return list(found)


@pytest.mark.parametrize("model", ["release", "tiny"])
def test_segments_add_up_in_every_pool(model: str, request: pytest.FixtureRequest) -> None:
    for pool in pools(request.getfixturevalue(model)):
        assert sum(part["bytes"] for part in pool["page"]) == pool["page_bytes"]
        assert sum(part["bytes"] for part in pool["state"]) == pool["state_bytes"]


def test_the_release_has_the_published_bytes(release: Anatomy) -> None:
    found = {(p["main"], p["index"], p["draft_tokens"]): p for p in pools(release)}
    published = found["bf16", "fp8", 0]
    assert (published["page_bytes"], published["state_bytes"]) == (739_840, 5_276_672)
    assert published["bytes_per_token"] == 2890
    assert [part["bytes"] for part in published["page"]] == [
        131_072,
        131_072,
        131_072,
        262_144,
        16_896,
        16_896,
        16_896,
        33_792,
    ]
    assert [part["bytes"] for part in published["state"]][:3] == [5_242_880, 16_384, 16_384]
    assert found["bf16", "fp8", 5]["state_bytes"] == 5_971_968
    assert [found[pair]["bytes_per_token"] for pair in (("bf16", "fp4", 0), ("fp4", "fp8", 0), ("fp4", "fp4", 0))] == [
        2730,
        1050,
        890,
    ]


def test_a_stripe_is_a_layer(release: Anatomy) -> None:
    for pool in pools(release):
        assert pool["state"][0]["stripes"] == (43 if pool["draft_tokens"] else 40)


def test_requests_cost_a_state_and_whole_pages(release: Anatomy) -> None:
    pool = pools(release)[0]
    for request in pool["requests"]:
        pages = -(-request["num_tokens"] // 256)
        assert request["bytes"] == pool["state_bytes"] + pages * pool["page_bytes"]
    assert pool["requests"][-1]["num_tokens"] == 1_048_576
