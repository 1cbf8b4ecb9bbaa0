from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="session")
def _small_pools() -> Iterator[None]:
    """Rendering a pool of the usual size takes longer than the steps of a test."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("training.batches.POOL_SAMPLES", 24)
        yield
