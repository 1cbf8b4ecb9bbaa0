"""Fixtures of the folders that run whole models: models that are opened once, and traces of the golden prompts.

A folder's conftest.py imports the ones it uses, so that other folders load no model code.
"""

import functools
from collections.abc import Callable
from pathlib import Path

import pytest

from flash41.config.run import Profile
from flash41.tools.traces import trace
from helpers.backends import BOTH_BACKENDS, REFERENCE, kernels_or_skip, why_not
from helpers.golden_judge import CHECKPOINT, Array, load_case
from helpers.models import Models, write_second

GoldenTraces = Callable[[str, Profile], dict[str, Array]]


@functools.cache
def models_of(backend: str) -> Models:
    """Models of a backend, which outlive the fixtures: a file may turn from one backend to another and back."""
    return Models(kernels_or_skip(backend))


@pytest.fixture(scope="session")
def models() -> Models:
    return models_of(REFERENCE)


@pytest.fixture(scope="session")
def quick_models() -> Models:
    """Of the compiled backend where it can be built: a step takes a fourth of the reference's time.

    For what engine and caches promise, which know nothing of kernels; a file that asks for it names it `models`.
    """
    return models_of(REFERENCE if why_not("cpu") else "cpu")


@pytest.fixture(scope="session", params=BOTH_BACKENDS)
def models_of_backends(request: pytest.FixtureRequest) -> Models:
    """Models of each backend in turn; a folder or file that asks for it names it `models`."""
    return models_of(request.param)


@pytest.fixture(scope="session")
def second_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("second") / "checkpoint"
    write_second(directory)
    return directory


@pytest.fixture(scope="session", params=["tiny-a", "second"])
def checkpoint(request: pytest.FixtureRequest, second_checkpoint: Path) -> Path:
    return CHECKPOINT if request.param == "tiny-a" else second_checkpoint


@pytest.fixture(scope="session")
def golden_traces(models: Models) -> GoldenTraces:
    """Every point of a golden prompt under a profile, computed once."""
    return _golden_traces_of(models)


@functools.cache
def _golden_traces_of(models: Models) -> GoldenTraces:
    return functools.cache(lambda name, profile: trace(models(CHECKPOINT, profile), load_case(name).ids))
