"""`flash41 draft-check`: drafts change speed and nothing else, shown on a checkpoint."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from flash41.cli.common import AsJson, print_json, print_table
from flash41.cli.engine_options import EngineOptions, takes_engine

HEADERS = ("drafts", "tokens/step", "accepted by position", "tokens/s", "over off", "answers")


@takes_engine(only=("profile", "kv_cache_dtype", "index_cache_dtype", "max_num_batched_tokens", "backend", "threads"))
def draft_check(
    directory: Annotated[
        Path | None,
        typer.Argument(metavar="DIR", help="Checkpoint directory. [default: the small trained one of flash41]"),
    ] = None,
    prompts: Annotated[
        Path | None, typer.Option("--prompts", metavar="F", help="Text file of prompts, one a line. [default: two]")
    ] = None,
    max_tokens: Annotated[int, typer.Option("--max-tokens", help="Tokens of each answer.")] = 24,
    as_json: AsJson = False,
    *,
    engine: EngineOptions,
) -> None:
    """Show that drafts change no token, and how many of them are accepted.

    Every prompt is answered at temperature 0 and with a seed: without drafts, with them, and with drafts of which
    exactly 0 to 5 are right. Tokens and log-probabilities must be equal to the bit; the status is 1 if they are not.
    """
    from rich.console import Console
    from rich.progress import Progress

    from flash41.tools.draft_check import PROMPTS, DraftCheckWish, check_drafts, read_prompts

    wish = DraftCheckWish(
        model=directory,
        prompts=PROMPTS if prompts is None else read_prompts(prompts),
        max_tokens=max_tokens,
        profile=engine.profile,
        kv_cache_dtype=engine.kv_cache_dtype,
        index_cache_dtype=engine.index_cache_dtype,
        max_num_batched_tokens=engine.max_num_batched_tokens,
        backend=engine.backend,
        threads=engine.threads,
    )
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("runs", total=None)
        runs = check_drafts(wish, lambda name: bar.update(task, description=name))
    differing = [run.difference for run in runs if run.difference is not None]
    if as_json:
        print_json({"equal": not differing, "requests": wish.num_requests, "runs": [asdict(run) for run in runs]})
    else:
        print_table(HEADERS, [_row(run) for run in runs], right=HEADERS[1:2] + HEADERS[3:5])
        count = wish.num_requests
        typer.echo(f"{count} answers per run, half at temperature 0, half seeded; seconds are of this machine")
    if differing:
        raise typer.Exit(1)


def _row(run: Any) -> tuple[str, ...]:
    gap = run.difference
    where = "equal" if run.name != "off" else "to compare with"
    if gap is not None:
        tokens = [None if token is None else token.token_id for token in (gap.expected, gap.got)]
        place = f"prompt {gap.prompt} at temperature {gap.temperature:g}, token {gap.index}"
        where = f"differ: {place}: got {tokens[1]}, expected {tokens[0]}"
    return (
        run.name,
        "" if run.tokens_per_step is None else f"{run.tokens_per_step:.2f}",
        " ".join(f"{share:.0%}" for share in run.acceptance),
        f"{run.tokens_per_second:.1f}",
        f"{run.ratio:.2f}",
        where,
    )
