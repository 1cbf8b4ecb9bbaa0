"""Checkpoints that tests ask: the embedded default, and a small random one, made once, whose answers do not end.

A folder's conftest.py imports the ones it uses.
"""

from pathlib import Path

import pytest

from flash41.checkpoint.default import default_checkpoint
from flash41.checkpoint.embedded import tiny_config, tiny_tokenizer_files
from flash41.checkpoint.synthetic import synthetic_weights
from flash41.checkpoint.writer import write_checkpoint

SEED = 41
"""That of `flash41 make-tiny`."""


@pytest.fixture(scope="session")
def default_directory() -> Path:
    return default_checkpoint()


@pytest.fixture(scope="session")
def tiny_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `flash41 make-tiny` makes, in three shards."""
    directory, config = tmp_path_factory.mktemp("random") / "tiny", tiny_config()
    weights = synthetic_weights(config, SEED)
    write_checkpoint(directory, config, weights, num_shards=3, tokenizer_files=tiny_tokenizer_files())
    return directory


@pytest.fixture
def tiny_as_default(tiny_directory: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`tiny_directory` where a command of this process is given no checkpoint."""
    for module in ("checkpoint.default", "engine.llm"):
        monkeypatch.setattr(f"flash41.{module}.default_checkpoint", lambda: tiny_directory)
    return tiny_directory
