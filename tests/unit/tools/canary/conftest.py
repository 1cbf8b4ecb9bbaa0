"""Tests of the canary ask the embedded default."""

from pathlib import Path

import pytest

from flash41.engine.llm import LLM
from helpers.default_fixtures import default_cache, default_directory

__all__ = ["default_cache", "default_directory"]


@pytest.fixture(scope="session")
def llm(default_directory: Path) -> LLM:
    """Shared, so nobody may change it."""
    return LLM(default_directory, max_model_len=1024, max_num_seqs=4, threads=1)
