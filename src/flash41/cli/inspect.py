"""`flash41 inspect`: what a model is, from its config.json alone."""

from pathlib import Path
from typing import Annotated

import typer

from flash41.cli.common import AsJson, print_json


def inspect(
    path: Annotated[Path, typer.Argument(metavar="DIR|config.json", help="Checkpoint directory, or its config.json.")],
    as_json: AsJson = False,
) -> None:
    """Show what a model is: its layers, its sizes, what each token uses.

    Only config.json is read, so this works without weights. Whether the files of a checkpoint are complete and
    belong together is what `flash41 doctor` says.
    """
    from flash41.cli.inspect_text import print_anatomy
    from flash41.config.huggingface import read_config
    from flash41.tools.anatomy import dissect

    anatomy = dissect(read_config(path))
    if as_json:
        print_json(anatomy.to_dict())
    else:
        print_anatomy(anatomy)
