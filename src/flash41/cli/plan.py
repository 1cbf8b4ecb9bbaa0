"""`flash41 plan`: whether a model fits a machine, how many requests, how long, how fast at best."""

from pathlib import Path
from typing import Annotated

import typer

from flash41.cli import machine_options as machines
from flash41.cli import options
from flash41.cli.common import AsJson


def plan(
    path: Annotated[
        Path | None,
        typer.Argument(
            metavar="[DIR|config.json]",
            help="Checkpoint directory, or its config.json. [default: the released model, which need not be there]",
            show_default=False,
        ),
    ] = None,
    gpu: machines.Gpu = None,
    gpus: machines.Gpus = 1,
    ram: machines.Ram = None,
    unified: machines.Unified = None,
    memory_bandwidth: machines.MemoryBandwidth = None,
    disk_read: machines.DiskRead = None,
    reserve: machines.Reserve = None,
    context: Annotated[
        int | None,
        typer.Option("--context", metavar="TOKENS", help="Length of a request, prompt and answer. [default: 8192]"),
    ] = None,
    concurrency: Annotated[
        int, typer.Option("--concurrency", metavar="N", help="Requests side by side, each of that length.")
    ] = 1,
    draft: Annotated[
        str, typer.Option("--draft", metavar="off|on", help="Whether the checkpoint's own stages draft tokens.")
    ] = "off",
    profile: options.Profile = "vendor",
    kv_cache_dtype: options.KvCacheDtype = None,
    index_cache_dtype: options.IndexCacheDtype = None,
    images: Annotated[bool, typer.Option("--images", help="Also load the image encoder.")] = False,
    max_num_batched_tokens: options.MaxNumBatchedTokens = 512,
    block_size: options.BlockSize = None,
    prefix_cache: options.PrefixCache = True,
    as_json: AsJson = False,
) -> None:
    """Tell what fits a machine before anything is loaded: memory, longest context, most requests, top speed.

    No weight is read and nothing but config.json is needed. Describe the machine with one of --gpu, --ram and
    --unified; without any it is the one you are at. How many requests of 100,000 tokens fit in 64 GiB?

    flash41 plan --ram 64G --context 100000

    The line "requests" says it, and "context" how long one request could be. Ask for more with --concurrency; where
    it does not fit, the plan says what to change. Sizes: K, M, G, T are powers of 1024; rates: of 1000. The exit
    status is 0 where it fits, 1 where it does not. Every sum is explained in docs/planning.md.
    """
    typed = machines.MachineOptions(
        gpu=gpu,
        gpus=gpus,
        ram=ram,
        unified=unified,
        disk_read=disk_read,
        memory_bandwidth=memory_bandwidth,
        reserve=reserve,
    )
    from flash41.cli.plan_answer import Asked, show_plan

    asked = Asked(
        context=context,
        requests=concurrency,
        profile=profile,
        kv_cache_dtype=kv_cache_dtype,
        index_cache_dtype=index_cache_dtype,
        draft=draft,
        images=images,
        rows=max_num_batched_tokens,
        block_size=block_size,
        prefix_cache=prefix_cache,
    )
    if not show_plan(path, typed, asked, as_json=as_json):
        raise typer.Exit(1)
