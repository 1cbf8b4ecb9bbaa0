"""`flash41 bench`: how fast a model is on this machine."""

import enum
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any

import typer

from flash41.cli import options
from flash41.cli.common import AsJson, print_json, print_table
from flash41.cli.drafts import draft_facts, draft_line
from flash41.cli.engine_options import EngineOptions, takes_engine
from flash41.cli.experts import expert_facts, expert_line

MANY = 8
PARTS = ("prefill", "decode", "output")
"""Speeds in the order of their columns."""


class Kind(enum.Enum):
    """What is measured."""

    THROUGHPUT = "throughput"
    LATENCY = "latency"


@takes_engine("max_model_len", "max_num_seqs", "memory")
def bench(
    kind: Annotated[Kind, typer.Argument(help="throughput: tokens per second; latency: waiting times.")],
    model: options.Model = None,
    prompt_tokens: Annotated[int, typer.Option("--prompt-tokens", help="Random ids of each prompt.")] = 64,
    output_tokens: Annotated[int, typer.Option("--output-tokens", help="Tokens of each answer, at least 2.")] = 32,
    num_requests: Annotated[int, typer.Option("--requests", help="Requests per concurrency.")] = MANY,
    concurrency: Annotated[
        int | None,
        typer.Option("--concurrency", help="Requests queued together. [default: 8 for throughput, 1 for latency]"),
    ] = None,
    as_json: AsJson = False,
    *,
    engine: EngineOptions,
) -> None:
    """Measure the speed of a model on this machine.

    Throughput is measured with one request at a time and with many at once in turns, and their ratio is printed.
    Seconds are of this machine, as busy as it is now; no figure here says anything about another one.
    """
    from rich.console import Console
    from rich.progress import Progress

    from flash41.tools.bench import BenchWish, latency, throughput

    together = (MANY if kind is Kind.THROUGHPUT else 1) if concurrency is None else concurrency
    wish = BenchWish(
        prompt_tokens=prompt_tokens, output_tokens=output_tokens, num_requests=num_requests, concurrency=together
    )
    llm = engine.open(model, max_model_len=wish.num_positions, max_num_seqs=together)
    console = Console(stderr=True)
    found: dict[str, Any] = {"kind": kind.value, **asdict(wish)}
    if engine.approximate:
        found["approximate"] = engine.approximate
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("requests", total=None)

        def progress(done: int, count: int) -> None:
            bar.update(task, completed=done, total=count)

        if kind is Kind.THROUGHPUT:
            found |= _speeds(throughput(llm, wish, progress))
        else:
            found |= asdict(latency(llm, wish, progress))
    if engine.drafts:
        found["drafts"] = draft_facts(llm.engine.stats)
    if llm.engine.stats.experts:
        found["experts"] = expert_facts(llm.engine.stats)
    if as_json:
        print_json(found)
        return
    if "experts" in found:
        typer.echo(expert_line(llm.engine.stats))
    _print(kind, found, draft_line(llm.engine.stats))


def _speeds(found: Sequence[Any]) -> dict[str, Any]:
    speeds = [asdict(speed) for speed in found]
    ratio = speeds[-1]["output_tokens_per_second"] / speeds[0]["output_tokens_per_second"]
    return {"speeds": speeds, "ratio": ratio}


def _print(kind: Kind, found: dict[str, Any], drafts: str) -> None:
    if "drafts" in found:
        typer.echo(drafts)
    if "approximate" in found:
        typer.echo(f"approximate: {', '.join(found['approximate'])}")
    work = f"prompts of {found['prompt_tokens']} tokens, answers of {found['output_tokens']}, on this machine"
    if kind is Kind.LATENCY:
        typer.echo(f"{found['num_requests']} requests, {found['concurrency']} at once, {work}")
        headers = ("milliseconds", "min", "median", "max")
        kinds = (("first token", "first_token_seconds"), ("per token", "per_token_seconds"))
        rows = [
            (name, *(f"{found[key][part] * 1000:.2f}" for part in ("minimum", "median", "maximum")))
            for name, key in kinds
        ]
        print_table(headers, rows, right=headers[1:])
        return
    typer.echo(f"{found['num_requests']} requests per row, {work}")
    headers = ("at once", "prefill", "decode", "answers")
    rows = [
        (str(speed["concurrency"]), *(f"{speed[f'{part}_tokens_per_second']:.1f}" for part in PARTS))
        for speed in found["speeds"]
    ]
    print_table(headers, rows, right=headers)
    typer.echo(f"  tokens per second; answers at {found['concurrency']} at once over 1: {found['ratio']:.2f}")
