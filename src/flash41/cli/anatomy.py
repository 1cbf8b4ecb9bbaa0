"""`flash41 anatomy`: a model, and what happened to a token, as one page for a browser."""

from pathlib import Path
from typing import Annotated

import typer

from flash41.cli import options


def anatomy(
    path: Annotated[Path, typer.Argument(metavar="DIR|config.json", help="Checkpoint directory, or its config.json.")],
    out: Annotated[Path, typer.Option("-o", "--out", metavar="F.html", help="File to write.")],
    trace: Annotated[
        Path | None,
        typer.Option("--trace", metavar="F.npz", help="What flash41 trace saved of this model: shown token by token."),
    ] = None,
    token: Annotated[
        int | None,
        typer.Option("--token", metavar="N", help="Position in the trace that is shown first. [default: the last]"),
    ] = None,
    force: options.Force = False,
) -> None:
    """Draw a model on one page: layers, shapes, attention modes, memory, parameters.

    Only config.json is read, and tokenizer.json to spell the tokens of a trace. The page is a single file that opens
    without a network.
    """
    from flash41.cli.common import human_bytes
    from flash41.tools.anatomy_page.make import make_page

    count = make_page(path, out, trace, token, force)
    typer.echo(f"{out}: {human_bytes(count)}")
