"""`flash41 batch`: a file of calls in, a file of results out."""

from pathlib import Path
from typing import Annotated

import typer

from flash41.cli import options


def batch(
    source: Annotated[Path, typer.Argument(metavar="IN.jsonl", help="Calls, one JSON object a line.")],
    target: Annotated[Path, typer.Argument(metavar="OUT.jsonl", help="File to write; continued if it is of this IN.")],
    model: options.Model = None,
    force: options.Force = False,
    profile: options.Profile = "vendor",
    kv_cache_dtype: options.KvCacheDtype = None,
    index_cache_dtype: options.IndexCacheDtype = None,
    max_model_len: options.MaxModelLen = None,
    max_num_seqs: options.MaxNumSeqs = 8,
    max_num_batched_tokens: options.MaxNumBatchedTokens = 512,
    block_size: options.BlockSize = None,
    memory: options.Memory = None,
    prefix_cache: options.PrefixCache = True,
    state_image_interval: options.StateImageInterval = options.STATE_IMAGE_INTERVAL,
    decoder_replay: options.DecoderReplay = False,
    prefix_replay: options.PrefixReplay = False,
    backend: options.Backend = "auto",
    threads: options.Threads = None,
) -> None:
    """Answer a file of OpenAI batch calls, many at a time.

    A line is {"custom_id", "method": "POST", "url", "body"} with the url /v1/chat/completions or /v1/completions. A
    line that cannot be answered becomes a result with an error; the others are answered. Results come in the order
    they finish. Started again after an interruption, it answers what is left.
    """
    memory_bytes = None if memory is None else options.num_bytes(memory, "--memory")
    from rich.console import Console
    from rich.progress import Progress

    from flash41.engine.llm import LLM
    from flash41.tools.batch import Batch, BatchWish

    labels = options.approximate(decoder_replay=decoder_replay, prefix_replay=prefix_replay)
    numbers = (profile, kv_cache_dtype, index_cache_dtype, *labels)
    work = Batch(BatchWish(source=source, target=target, force=force, model=model, options=numbers))
    llm = None
    if work.num_left:
        llm = LLM(
            model,
            profile=profile,
            kv_cache_dtype=kv_cache_dtype,
            index_cache_dtype=index_cache_dtype,
            max_model_len=max_model_len,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            block_size=block_size,
            memory_bytes=memory_bytes,
            prefix_cache=prefix_cache,
            state_image_interval=state_image_interval,
            decoder_replay=decoder_replay,
            prefix_replay=prefix_replay,
            backend=backend,
            threads=threads,
        )
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
