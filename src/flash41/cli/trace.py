"""`flash41 trace`: every intermediate result of a forward, under the names other engines can be compared by."""

from pathlib import Path
from typing import Annotated

import typer

from flash41.cli import options


def trace(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Checkpoint directory.")],
    token_ids: Annotated[str, typer.Option("--token-ids", metavar="1,2,3", help="The ids to run.")],
    out: Annotated[Path, typer.Option("--out", metavar="F.npz", help="File to write.")],
    image: Annotated[
        list[Path] | None,
        typer.Option("--image", metavar="F", help="Image for the next placeholder among the ids; may be repeated."),
    ] = None,
    chunks: Annotated[
        str | None,
        typer.Option("--chunks", metavar="5,1,7", help="Lengths of the forwards; the last one repeats. [default: one]"),
    ] = None,
    profile: options.Profile = "vendor",
    kv_cache_dtype: options.KvCacheDtype = None,
    index_cache_dtype: options.IndexCacheDtype = None,
    points: Annotated[
        list[str] | None,
        typer.Option("--points", metavar="GLOB", help="Keep matching points only, e.g. 'L2.*'; may be repeated."),
    ] = None,
    draft: Annotated[
        bool, typer.Option("--draft", help="Add the points of the draft block behind the last token.")
    ] = False,
    like: Annotated[
        str | None,
        typer.Option(
            "--like",
            metavar="ENGINE",
            help="Names and layouts of vllm, sglang, transformers or llama.cpp, and only what that engine shows "
            "(see flash41 hooks). [default: ours]",
        ),
    ] = None,
    backend: options.Backend = "auto",
    threads: options.Threads = None,
    force: options.Force = False,
) -> None:
    """Run token ids and save `logits` and every named intermediate result as `trace/<point>`.

    With --like, the results lie in the file as another engine names and lays them out.
    """
    ids = options.integers(token_ids, "--token-ids")
    lengths = None if chunks is None else options.integers(chunks, "--chunks")
    from flash41.tools.tracing import TraceWish, save_trace

    wish = TraceWish(
        ids=ids,
        chunks=lengths,
        points=tuple(points or ("*",)),
        draft=draft,
        images=tuple(image or ()),
        profile=profile,
        kv_cache_dtype=kv_cache_dtype,
        index_cache_dtype=index_cache_dtype,
        backend=backend,
        threads=threads,
        like=like,
    )
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("tokens", total=len(ids))

        def show(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)  # images widen the ids that were given

        count = save_trace(directory, wish, out, force, show)
        num_tokens = int(bar.tasks[0].completed)
    typer.echo(f"{out}: logits of {num_tokens} tokens and {count} trace points")
