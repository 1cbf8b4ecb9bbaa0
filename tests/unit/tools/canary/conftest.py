"""Tests of the canary ask a small random model."""

from pathlib import Path

import pytest

from flash41.engine.llm import LLM
from helpers.default_fixtures import tiny_directory

__all__ = ["tiny_directory"]


@pytest.fixture(scope="session")
def llm(tiny_directory: Path) -> LLM:
    """Shared, so nobody may change it."""
    return LLM(tiny_directory, max_model_len=1024, max_num_seqs=4, threads=1)
