"""Files of results: written whole or not at all, and never over what is there unless that is asked for."""

import os
from pathlib import Path

from flash41.errors import ConfigError, complaint


def check_target(path: Path, *, force: bool) -> None:
    """ConfigError where a result would replace something, or has no folder to lie in; asked before work begins."""
    if not path.parent.is_dir():
        raise ConfigError(complaint(f"output {path}", "no such folder", "a folder that exists"))
    if path.is_dir() or (path.exists() and not force):
        raise ConfigError(complaint(f"output {path}", "something there", "a free name", "--force replaces a file"))


def write_whole(path: Path, text: str, *, force: bool) -> None:
    """The text under that name, in one step."""
    check_target(path, force=force)
    fresh = path.with_name(f"{path.name}.new")
    fresh.write_text(text, encoding="utf-8")
    os.replace(fresh, path)
