"""How far weights are that are read into memory, on a terminal and only where that takes a while."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import DownloadColumn, Progress

SHOWN_BYTES = 256 << 20
"""Weights below this are read before anybody could look."""


@contextmanager
def loading_bar() -> Iterator[dict[str, Any]]:
    """The keyword of `LLM` that draws a bar on standard error; none where it is no terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield {}
        return
    bar = Progress(*Progress.get_default_columns(), DownloadColumn(), console=console, transient=True)
    task = bar.add_task("weights", total=None)

    def progress(done: int, count: int) -> None:
        if count >= SHOWN_BYTES:
            bar.start()
            bar.update(task, completed=done, total=count)

    try:
        yield {"loading": progress}
    finally:
        if bar.live.is_started:
            bar.stop()
