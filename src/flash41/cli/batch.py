"""`flash41 batch`: a file of calls in, a file of results out."""

from pathlib import Path
from typing import Annotated

import typer

from flash41.cli import options
from flash41.cli.drafts import draft_line
from flash41.cli.engine_options import EngineOptions, takes_engine


@takes_engine()
def batch(
    source: Annotated[Path, typer.Argument(metavar="IN.jsonl", help="Calls, one JSON object a line.")],
    target: Annotated[Path, typer.Argument(metavar="OUT.jsonl", help="File to write; continued if it is of this IN.")],
    model: options.Model = None,
    force: options.Force = False,
    *,
    engine: EngineOptions,
) -> None:
    """Answer a file of OpenAI batch calls, many at a time.

    A line is {"custom_id", "method": "POST", "url", "body"} with the url /v1/chat/completions or /v1/completions. A
    line that cannot be answered becomes a result with an error; the others are answered. Results come in the order
    they finish. Started again after an interruption, it answers what is left.
    """
    from rich.console import Console
    from rich.progress import Progress

    from flash41.tools.batch import Batch, BatchWish

    labels = engine.approximate
    work = Batch(BatchWish(source=source, target=target, force=force, model=model, options=engine.numbers))
    llm = None
    if work.num_left:
        llm = engine.open(model)
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("calls", total=len(work.lines), completed=work.totals.num_kept)
        totals = work.run(llm, lambda done, count: bar.update(task, completed=done, total=count))
    kept = f" ({totals.num_kept} of them were there already)" if totals.num_kept else ""
    typer.echo(f"{target}: {totals.num_ok} ok, {totals.num_failed} failed{kept}")
    if labels:
        typer.echo(f"approximate: {', '.join(labels)}")
    if llm is not None and llm.engine.stats.num_hits:
        stats = llm.engine.stats
        typer.echo(f"prefix cache: {stats.cached_tokens:,} of {stats.wanted_tokens:,} tokens were there already")
    if llm is not None and engine.drafts:
        typer.echo(draft_line(llm.engine.stats))
