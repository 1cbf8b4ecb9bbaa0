"""Fixtures of the folders that run whole models: models that are opened once, and traces of the golden prompts.

A folder's conftest.py imports the ones it uses, so that other folders load no model code.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from flash41.config.run import Profile
from flash41.tools.traces import trace
from helpers.backends import BOTH_BACKENDS, kernels_or_skip
from helpers.golden_judge import CHECKPOINT, Array, load_case
from helpers.models import Models, write_second

GoldenTraces = Callable[[str, Profile], dict[str, Array]]


@pytest.fixture(scope="session")
def models() -> Models:
    return Models()


@pytest.fixture(scope="session", params=BOTH_BACKENDS)
def models_of_backends(request: pytest.FixtureRequest) -> Models:
    """Models of each backend in turn; a folder or file that asks for it names it `models`."""
    return Models(kernels_or_skip(request.param))


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
    kept: dict[tuple[str, Profile], dict[str, Array]] = {}

    def traced(name: str, profile: Profile) -> dict[str, Array]:
        key = (name, profile)
        if key not in kept:
            kept[key] = trace(models(CHECKPOINT, profile), load_case(name).ids)
        return kept[key]

    return traced
