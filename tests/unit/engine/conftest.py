"""Tests of the engine run the golden checkpoint on the quickest kernels, and a small random one as users do."""

from pathlib import Path

import pytest

from flash41.engine.llm import LLM
from helpers.default_fixtures import default_directory, tiny_directory
from helpers.llm_prompts import PARAMS, PROMPTS
from helpers.model_fixtures import quick_models
from helpers.models import Models

__all__ = ["default_directory", "quick_models", "tiny_directory"]


@pytest.fixture(scope="session")
def models(quick_models: Models) -> Models:
    return quick_models


@pytest.fixture(scope="session")
def shared_llm(tiny_directory: Path) -> LLM:
    return LLM(tiny_directory, max_model_len=64)


@pytest.fixture
def llm(shared_llm: LLM) -> LLM:
    """The shared engine, of which nobody has left anything running."""
    assert shared_llm.engine.num_unfinished == 0
    return shared_llm


@pytest.fixture(scope="session")
def expected(shared_llm: LLM) -> list[tuple[int, ...]]:
    """Output ids of every one of the four prompts, asked alone."""
    return [shared_llm.generate([prompt], PARAMS)[0].output_ids for prompt in PROMPTS]
