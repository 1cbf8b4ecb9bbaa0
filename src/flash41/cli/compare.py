"""`flash41 compare`: where two engines part, point by point."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from flash41.cli.common import AsJson, print_json


def compare(
    first: Annotated[Path, typer.Argument(metavar="A.npz", help="Trace to compare with, made by `flash41 trace`.")],
    second: Annotated[Path, typer.Argument(metavar="B.npz", help="Trace of the other engine, or of another run.")],
    every_point: Annotated[bool, typer.Option("--points", help="Show every point, not only where it begins.")] = False,
    as_json: AsJson = False,
) -> None:
    """Compare two traces of one prompt and say where they part.

    Both files hold arrays under the names of `flash41 trace` (docs/comparing.md tells how another engine writes them).
    Every point is held against what it is computed from, so that the first module that computes something else is
    named, not the errors it causes. Selections are compared as sets, and ties told apart from real differences. The
    exit status is 1 when something diverges.
    """
    from flash41.cli.compare_text import print_comparison
    from flash41.tools.comparison.compare import compare as compared
    from flash41.tools.comparison.files import read_trace

    found = compared(read_trace(first), read_trace(second))
    if as_json:
        verdict = {"first": found.first and asdict(found.first), "module": found.module and asdict(found.module)}
        print_json(_document(asdict(found) | verdict))
    else:
        print_comparison(found, every_point=every_point)
    if found.first is not None:
        raise typer.Exit(1)


def _document(value: Any) -> Any:
    """Plain JSON: states by their names, infinite errors as null."""
    if isinstance(value, dict):
        return {key: _document(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_document(one) for one in value]
    if isinstance(value, float):
        return value if abs(value) != float("inf") else None
    return getattr(value, "value", value)
