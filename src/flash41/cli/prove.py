"""`flash41 prove`: a comparison that could not fail would prove nothing."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from flash41.cli import options
from flash41.cli.common import AsJson, print_json, print_table

HEADERS = ("what is broken", "noticed", "first divergence", "rows", "which is")


def prove(
    directory: Annotated[
        Path | None,
        typer.Argument(metavar="DIR", help="Checkpoint directory. [default: the small trained one of flash41]"),
    ] = None,
    token_ids: Annotated[
        str | None, typer.Option("--token-ids", metavar="1,2,3", help="Prompt to run. [default: made up]")
    ] = None,
    tokens: Annotated[
        int | None,
        typer.Option(
            "--tokens", metavar="N", help="Length of a made-up prompt. [default: what shows all, at most 256]"
        ),
    ] = None,
    profile: options.Profile = "vendor",
    backend: options.Backend = "auto",
    as_json: AsJson = False,
) -> None:
    """Break one mechanism at a time and show that `compare` finds it.

    The unbroken model, read in chunks, must be equal to the bit. Whatever a prompt of this length cannot show is listed
    as not run. The exit status is 1 if something broken was not noticed where it was broken.
    """
    ids = None if token_ids is None else options.integers(token_ids, "--token-ids")
    if ids is not None and tokens is not None:
        raise typer.BadParameter("it is the length of a made-up prompt; --token-ids gives one", param_hint="--tokens")
    from rich.console import Console
    from rich.progress import Progress

    from flash41.tools.prove import ProveWish
    from flash41.tools.prove import prove as proved

    wish = ProveWish(directory=directory, ids=ids, num_tokens=tokens, profile=profile, backend=backend)
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("runs", total=None)
        proofs = proved(wish, lambda what, done, total: bar.update(task, description=what, completed=done, total=total))
    if as_json:
        print_json({"proofs": [asdict(proof) for proof in proofs]})
    else:
        words = {True: "yes", False: "NO", None: "-"}
        rows = [(one.name, words[one.passed], one.point or "", one.rows, one.what) for one in proofs]
        same = "equal" if proofs[0].passed else "DIFFERS"
        rows[0] = (proofs[0].name, same, proofs[0].point or "", "", proofs[0].what)
        print_table(HEADERS, rows)
    if any(proof.passed is False for proof in proofs):
        raise typer.Exit(1)
