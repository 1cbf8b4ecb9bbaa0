"""`flash41 doctor`: whether a checkpoint directory is complete and consistent, from its headers or to the last byte."""

from pathlib import Path
from typing import Annotated

import typer

from flash41.cli import options
from flash41.cli.common import AsJson, print_json, to_json


def doctor(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Checkpoint directory to examine.")],
    as_json: AsJson = False,
    deep: Annotated[
        bool,
        typer.Option("--deep", help="Also read every byte once: NaN, tensors of zeros, checksums. Takes minutes."),
    ] = False,
    report: Annotated[
        Path | None, typer.Option("--report", metavar="FILE", help="Also write the report as JSON to a file.")
    ] = None,
    state: Annotated[
        Path | None,
        typer.Option(
            "--state",
            metavar="FILE",
            help="With --deep: where an interrupted scan is kept, and goes on. [default: REPORT.state with --report]",
        ),
    ] = None,
    sums: Annotated[
        Path | None,
        typer.Option("--sums", metavar="FILE", help="With --deep: output of sha256sum to compare the shards with."),
    ] = None,
    force: options.Force = False,
) -> None:
    """Examine a checkpoint: what it is, and every fault in it.

    Compares config.json, index, shard headers, tokenizer and generation config with each other. No weight is read,
    so half a terabyte takes seconds; with --deep every byte is, in bounded memory, and a scan that was interrupted
    goes on where it stopped if it has a place to note that. The checkpoint itself is never written to. The exit
    status is 0 for a checkpoint without faults, else 1.
    """
    from flash41.cli.doctor_text import DeepBar, print_report
    from flash41.tools.doctor import DeepWish, examine
    from flash41.tools.outputs import check_target, write_whole

    for option, value in (("--state", state), ("--sums", sums)):
        if value is not None and not deep:
            raise typer.BadParameter("got no --deep, expected it, as only then bytes are read", param_hint=option)
    if report is not None:
        check_target(report, force=force)
        state = state or report.with_name(report.name + ".state")
    if deep:
        with DeepBar(directory) as bar:
            found = examine(directory, DeepWish(state=state, sums=sums, progress=bar.advance))
    else:
        found = examine(directory)
    if report is not None:
        write_whole(report, to_json(found.to_dict(), indent=2, sort_keys=True) + "\n", force=force)
    if as_json:
        print_json(found.to_dict())
    else:
        print_report(found)
    if found.faults:
        raise typer.Exit(1)
