"""`flash41 bench`: how fast a model is on this machine."""

import enum
from dataclasses import asdict
from typing import Annotated, Any

import typer

from flash41.cli import options
from flash41.cli.common import AsJson, print_json, print_table

MANY = 8
PARTS = ("prefill", "decode", "output")
"""Speeds in the order of their columns."""


class Kind(enum.Enum):
    """What is measured."""

    THROUGHPUT = "throughput"
    LATENCY = "latency"


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
    profile: options.Profile = "vendor",
    kv_cache_dtype: options.KvCacheDtype = None,
    index_cache_dtype: options.IndexCacheDtype = None,
    max_num_batched_tokens: options.MaxNumBatchedTokens = 512,
    block_size: options.BlockSize = None,
    prefix_cache: options.PrefixCache = True,
    state_image_interval: options.StateImageInterval = options.STATE_IMAGE_INTERVAL,
    decoder_replay: options.DecoderReplay = False,
    prefix_replay: options.PrefixReplay = False,
    backend: options.Backend = "auto",
    threads: options.Threads = None,
) -> None:
    """Measure the speed of a model on this machine.

    Throughput is measured with one request at a time and with many at once in turns, and their ratio is printed.
    Seconds are of this machine, as busy as it is now; no figure here says anything about another one.
    """
    from rich.console import Console
    from rich.progress import Progress

    from flash41.engine.llm import LLM
    from flash41.tools.bench import BenchWish, latency, throughput

    together = (MANY if kind is Kind.THROUGHPUT else 1) if concurrency is None else concurrency
    wish = BenchWish(
        prompt_tokens=prompt_tokens, output_tokens=output_tokens, num_requests=num_requests, concurrency=together
    )
    llm = LLM(
        model,
        profile=profile,
        kv_cache_dtype=kv_cache_dtype,
        index_cache_dtype=index_cache_dtype,
        max_model_len=wish.num_positions,
        max_num_seqs=together,
        max_num_batched_tokens=max_num_batched_tokens,
        block_size=block_size,
        prefix_cache=prefix_cache,
        state_image_interval=state_image_interval,
        decoder_replay=decoder_replay,
        prefix_replay=prefix_replay,
        backend=backend,
        threads=threads,
    )
    console = Console(stderr=True)
    found: dict[str, Any] = {"kind": kind.value, **asdict(wish)}
    labels = options.approximate(decoder_replay=decoder_replay, prefix_replay=prefix_replay)
    if labels:
        found["approximate"] = labels
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("requests", total=None)

        def progress(done: int, count: int) -> None:
            bar.update(task, completed=done, total=count)

        if kind is Kind.THROUGHPUT:
            speeds = [asdict(speed) for speed in throughput(llm, wish, progress)]
            ratio = speeds[-1]["output_tokens_per_second"] / speeds[0]["output_tokens_per_second"]
            found |= {"speeds": speeds, "ratio": ratio}
        else:
            found |= asdict(latency(llm, wish, progress))
    if as_json:
        print_json(found)
    else:
        _print(kind, found)


def _print(kind: Kind, found: dict[str, Any]) -> None:
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
