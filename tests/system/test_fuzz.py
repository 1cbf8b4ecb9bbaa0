"""Requests that the interface description allows, and ones it does not: none may break the server.

A scripted service stands in for the engine, so that what is valid costs nothing.
"""

import time
from collections.abc import Iterator
from typing import Any

import hypothesis
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from helpers.lazily import lazily
from helpers.scripted_server import listening_at
from helpers.serving import Scripted, small_codec

schemathesis = lazily("schemathesis")
SLOWEST_SECONDS = 5.0
"""Five times what an answer may take."""


@pytest.fixture(scope="module")
def scripted() -> Scripted:
    return Scripted(small_codec(), "because</think>Hi")


@pytest.fixture(scope="module")
def url(scripted: Scripted) -> Iterator[str]:
    with listening_at(scripted) as found:
        yield found


def fuzz(scripted: Scripted, url: str, num_cases: int) -> dict[str, dict[int, int]]:
    """Statuses by operation of about `num_cases` requests, each of which must be answered, fast and below 500."""
    document = scripted.app.api.openapi()
    schema = schemathesis.openapi.from_dict(document)
    operations = [found.ok() for found in schema.get_all_operations()]
    statuses: dict[str, dict[int, int]] = {}
    bodies = [operation for operation in operations if operation.method == "post"]  # the others vary little
    for operation in operations:
        counts = statuses.setdefault(f"{operation.method} {operation.path}", {})
        _fuzz_one(operation, url, -(-num_cases // len(bodies)) if operation in bodies else 2, counts)
    assert scripted.app.context.gate.num_open == 0
    return statuses


def _fuzz_one(operation: Any, url: str, num_cases: int, counts: dict[int, int]) -> None:
    @hypothesis.settings(
        max_examples=num_cases,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(case=st.one_of(*(operation.as_strategy(generation_mode=mode) for mode in schemathesis.GenerationMode)))
    def check(case: Any) -> None:
        started = time.monotonic()
        response = case.call(base_url=url, timeout=30)
        assert time.monotonic() - started < SLOWEST_SECONDS
        counts[response.status_code] = counts.get(response.status_code, 0) + 1
        assert response.status_code < 500, response.text

    check()


def test_a_hundred_generated_requests_break_nothing(scripted: Scripted, url: str) -> None:
    statuses = fuzz(scripted, url, 100)
    assert sum(map(sum, (counts.values() for counts in statuses.values()))) > 90
    assert any(200 in counts for counts in statuses.values())
    assert any(400 in counts for counts in statuses.values())


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_two_thousand_generated_requests_break_nothing(scripted: Scripted, url: str) -> None:
    statuses = fuzz(scripted, url, 2000)
    assert sum(map(sum, (counts.values() for counts in statuses.values()))) > 1900
