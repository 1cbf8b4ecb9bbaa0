"""`flash41 hooks`: where hooks in another engine stand, so that its arrays can be laid beside ours."""

from pathlib import Path
from typing import Annotated

import typer

from flash41.cli.common import to_json


def hooks(
    engine: Annotated[
        str, typer.Argument(metavar="ENGINE", help="vllm, sglang, transformers or llama.cpp.", show_default=False)
    ],
    path: Annotated[
        Path | None,
        typer.Argument(metavar="DIR|config.json", help="Model whose hooks to print.", show_default=False),
    ] = None,
    draft: Annotated[bool, typer.Option("--draft", help="Add the hooks of a draft block.")] = False,
    images: Annotated[bool, typer.Option("--images", help="Add the hooks of the image encoder.")] = False,
) -> None:
    """Show by what another engine differs from ours; for a model, print where to place hooks in it.

    Without a model: the release the facts are from and what to know when comparing, as text. With one: a JSON object
    per line and point, with our name, theirs and the place of the hook; docs/comparing.md says how to use them.
    Only config.json is read.
    """
    from flash41.config.huggingface import read_config
    from flash41.errors import RequestError, complaint
    from flash41.tools.adapters.all import find_adapter
    from flash41.tools.adapters.table import hook_table
    from flash41.tools.points import point_names

    adapter = find_adapter(engine)
    if path is not None:
        config = read_config(path)
        points = point_names(config, draft, images)
        for record in hook_table(adapter, points, config.num_layers):
            typer.echo(to_json(record))
        return
    if draft or images:
        given = "--draft" if draft else "--images"
        raise RequestError(complaint("option without a model", given, "a directory or config.json behind the engine"))
    typer.echo(f"{adapter.engine}, facts from {adapter.version}")
    for note in adapter.notes:
        typer.echo(f"- {note}")
