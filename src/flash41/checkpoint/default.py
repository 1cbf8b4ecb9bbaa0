"""The embedded default: a small checkpoint in the true format, with every mechanism present, made at first use.

Its configuration and tokenizer are shipped; its weights are random, from a fixed seed, and the same bytes everywhere.
It lies in the user's cache directory; where that cannot be written it goes to a temporary folder, with one warning.

    four attention modes, with a REINDEX layer behind a candidate source that really drops blocks
    two Engram tables, four residual streams, three draft stages, a vision tower, a byte-level tokenizer
"""

import fcntl
import logging
import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import platformdirs
from torch import Tensor

from flash41.checkpoint.directory import survey
from flash41.checkpoint.embedded import TOKENIZER_FILES, tiny_config, tiny_tokenizer_files
from flash41.checkpoint.synthetic import synthetic_weights
from flash41.checkpoint.writer import write_checkpoint
from flash41.errors import CheckpointError

VERSION = "2"
"""Changes whenever the bytes of the default checkpoint change; an older one is rebuilt."""

VERSION_FILE = "default-version.txt"
SEED = 41
NUM_SHARDS = 3

Progress = Callable[[str], None]
"""Called with the name of each tensor as it is made."""

logger = logging.getLogger(__name__)


def default_checkpoint(progress: Progress | None = None) -> Path:
    """Directory of the embedded default, made now if it is missing, damaged or of another version.

    Raises CheckpointError if the temporary folder cannot hold it either.
    """
    cache = platformdirs.user_cache_path("flash41")
    try:
        return _made_in(cache, progress)
    except (OSError, CheckpointError) as error:
        folder = _temporary_folder()
        logger.warning("cache directory %s: %s; the default checkpoint goes to %s", cache, error, folder)
        return _made_in(folder, progress)


def write_default(directory: Path, progress: Progress | None = None, force: bool = False) -> None:
    """Writes the embedded default to a directory; raises CheckpointError if it exists and `force` is not given."""
    config = tiny_config()
    stored = synthetic_weights(config, SEED)

    def weights(name: str) -> Tensor:
        if progress is not None:
            progress(name)
        return stored(name)

    extra = {VERSION_FILE: f"{VERSION}\n".encode()}
    write_checkpoint(
        directory,
        config,
        weights,
        num_shards=NUM_SHARDS,
        tokenizer_files={**tiny_tokenizer_files(), **extra},
        force=force,
    )


def _made_in(folder: Path, progress: Progress | None) -> Path:
    directory = folder / "default"
    # Where it lies already, nothing is written: a read-only cache will do.
    if not _is_current(directory):
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(folder / "default.lock"):
            if not _is_current(directory):
                write_default(directory, progress, force=True)
    return directory


def _is_current(directory: Path) -> bool:
    """Whether it is of this version and whole; a disk that filled up or a cleaner may have left a part of it."""
    try:
        version = (directory / VERSION_FILE).read_text()
    except (OSError, ValueError):
        return False
    has_tokenizer = all((directory / name).is_file() for name in TOKENIZER_FILES)
    return version == f"{VERSION}\n" and has_tokenizer and not survey(directory)[1]


def _temporary_folder() -> Path:
    """A folder of this user, the same one every time unless somebody else took its name."""
    folder = Path(tempfile.gettempdir()) / f"flash41-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError:
        return Path(tempfile.mkdtemp(prefix="flash41-"))
    if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid():
        return folder
    return Path(tempfile.mkdtemp(prefix="flash41-"))


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    # Two processes that start together must not replace each other's mapped files.
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
