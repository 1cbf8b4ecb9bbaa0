"""`flash41 make-tiny`: a small random checkpoint in the true format."""

from pathlib import Path
from typing import Annotated

import typer

from flash41.cli import options


def make_tiny(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Directory to make.")],
    config: Annotated[
        Path | None,
        typer.Option("--config", metavar="F", help="config.json of any widths. [default: a small one of its own]"),
    ] = None,
    tokenizer: Annotated[
        Path | None,
        typer.Option(
            "--tokenizer",
            metavar="F",
            help="tokenizer.json that fits it. [default: the one beside --config, else a small one of its own]",
        ),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the weights.")] = 41,
    force: options.Force = False,
) -> None:
    """Write random weights in the released on-disk format."""
    from rich.console import Console
    from rich.progress import Progress

    from flash41.checkpoint.schema import schema
    from flash41.tools.tiny import config_to_fill, tokenizer_beside
    from flash41.tools.tiny import make_tiny as make

    model = config_to_fill(config)
    count = len(schema(model))
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("tensors", total=count)
        make(directory, model, seed, tokenizer or tokenizer_beside(config), lambda _: bar.advance(task), force)
    typer.echo(f"{directory}: {count} tensors, seed {seed}")
