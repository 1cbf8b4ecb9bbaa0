"""`flash41 inspect`: what a model is, from its config.json and the index of its files."""

from pathlib import Path
from typing import Annotated

import typer

from flash41.cli.common import AsJson, print_json


def inspect(
    path: Annotated[Path, typer.Argument(metavar="DIR|config.json", help="Checkpoint directory, or its config.json.")],
    as_json: AsJson = False,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print a Markdown document instead of text.")] = False,
    tensors: Annotated[
        bool, typer.Option("--tensors", help="Also list every kind of tensor; JSON and Markdown always do.")
    ] = False,
) -> None:
    """Show what a model is: its layers, its sizes, what each token uses, what its cache costs.

    Only config.json is read and, in a directory, the index, so this works without weights. Whether the files of a
    checkpoint are complete and belong together is what `flash41 doctor` says; whether it fits a machine, what
    `flash41 plan` says.
    """
    from flash41.cli.inspect_text import anatomy_sections, anatomy_title
    from flash41.cli.sections import markdown, print_sections
    from flash41.config.huggingface import read_config
    from flash41.tools.anatomy import dissect

    if as_json and as_markdown:
        raise typer.BadParameter("got --json and --markdown, expected one of them", param_hint="--markdown")
    anatomy = dissect(read_config(path), path if path.is_dir() else None)
    if as_json:
        print_json(anatomy.to_dict())
    elif as_markdown:
        typer.echo(markdown(anatomy_title(anatomy), anatomy_sections(anatomy, with_tensors=True)), nl=False)
    else:
        typer.echo(anatomy_title(anatomy))
        print_sections(anatomy_sections(anatomy, with_tensors=tensors))
