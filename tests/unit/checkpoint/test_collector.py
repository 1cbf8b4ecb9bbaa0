import gc

import pytest

from flash41.checkpoint.collector import collector_paused


@pytest.mark.parametrize("enabled", [True, False])
def test_collection_is_off_inside_and_afterwards_as_it_was(enabled: bool) -> None:
    before = gc.isenabled()
    try:
        (gc.enable if enabled else gc.disable)()
        with pytest.raises(AssertionError), collector_paused():
            assert gc.isenabled()
        assert gc.isenabled() is enabled
    finally:
        (gc.enable if before else gc.disable)()
