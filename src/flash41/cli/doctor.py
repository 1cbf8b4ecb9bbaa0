"""`flash41 doctor`: whether a checkpoint directory is complete and consistent, from its headers."""

from pathlib import Path
from typing import Annotated

import typer

from flash41.cli.common import AsJson, print_json


def doctor(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Checkpoint directory to examine.")],
    as_json: AsJson = False,
) -> None:
    """Examine a checkpoint: what it is, and every fault in it.

    Compares config.json, index, shard headers and tokenizer with each other. No weight is read, so half a terabyte
    takes seconds. The exit status is 0 for a checkpoint without faults, else 1.
    """
    from flash41.cli.doctor_text import print_report
    from flash41.tools.doctor import examine

    report = examine(directory)
    if as_json:
        print_json(report.to_dict())
    else:
        print_report(report)
    if report.faults:
        raise typer.Exit(1)
