"""Making a directory all at once: it appears complete under its name, or not at all."""

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from flash41.checkpoint.directory import CONFIG_FILE
from flash41.errors import CheckpointError, complaint


@contextmanager
def staged(directory: Path, force: bool) -> Iterator[Path]:
    """A new empty folder beside `directory` that takes its name when the body ends, and vanishes when it fails.

    CheckpointError when `directory` exists, unless `force` and it is empty or a checkpoint; and when the file system
    refuses.
    """
    directory = directory.absolute()
    _check_target(directory, force)
    folder = _sibling(directory, "partial")
    try:
        folder.mkdir(parents=True)
        yield folder
        _take_name(folder, directory)
    except OSError as error:
        raise CheckpointError(complaint(f"writing {directory}", str(error), "a file system that accepts it")) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _sibling(directory: Path, word: str) -> Path:
    return directory.with_name(f".{directory.name}.{secrets.token_hex(4)}.{word}")


def _check_target(directory: Path, force: bool) -> None:
    if not os.path.lexists(directory):
        return
    if not force:
        raise CheckpointError(complaint("target", str(directory), "a name that does not exist yet", "or use force"))
    replaceable = directory.is_dir() and not directory.is_symlink()
    if not replaceable or not ((directory / CONFIG_FILE).is_file() or not any(directory.iterdir())):
        condition = "a checkpoint or an empty folder, as nothing else is replaced"
        raise CheckpointError(complaint("target", str(directory), condition))


def _take_name(folder: Path, directory: Path) -> None:
    if not directory.exists():
        folder.rename(directory)
        return
    old = _sibling(directory, "old")
    directory.rename(old)
    try:
        folder.rename(directory)
    except OSError:
        old.rename(directory)
        raise
    shutil.rmtree(old, ignore_errors=True)
