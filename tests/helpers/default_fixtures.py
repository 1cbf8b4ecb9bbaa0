"""Fixtures of the folders that use the embedded default: made once, in a cache directory that is nobody's own.

A folder's conftest.py imports the ones it uses.
"""

from pathlib import Path

import pytest

from flash41.checkpoint.default import write_default


@pytest.fixture(scope="session")
def default_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user cache directory that holds the default checkpoint."""
    cache = tmp_path_factory.mktemp("cache")
    write_default(cache / "flash41" / "default")
    return cache


@pytest.fixture(scope="session")
def default_directory(default_cache: Path) -> Path:
    return default_cache / "flash41" / "default"


@pytest.fixture
def user_cache(default_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`default_cache` as the cache directory of this process."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(default_cache))
    return default_cache
