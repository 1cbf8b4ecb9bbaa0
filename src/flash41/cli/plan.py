"""`flash41 plan`: whether a model fits a machine, how many requests, how long, how fast at best."""

from pathlib import Path
from typing import Annotated

import typer

from flash41.cli import machine_options as machines
from flash41.cli import options
from flash41.cli.common import AsJson, print_json

RELEASE = "the released model"


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
    from flash41.checkpoint.release import RELEASE_NAME, release_config
    from flash41.cli.plan_text import plan_sections, plan_title
    from flash41.cli.sections import print_sections
    from flash41.config.huggingface import read_config
    from flash41.config.names import named_wish
    from flash41.config.run import RunWish
    from flash41.planning.capacity import plan_machine
    from flash41.planning.demand import Demand
    from flash41.planning.remedies import remedies
    from flash41.planning.report import plan_document
    from flash41.planning.resolve import DEFAULT_MODEL_LEN, default_block_size

    typed = machines.MachineOptions(
        gpu=gpu,
        gpus=gpus,
        ram=ram,
        unified=unified,
        disk_read=disk_read,
        memory_bandwidth=memory_bandwidth,
        reserve=reserve,
    )
    found = typed.machine()
    config = release_config() if path is None else read_config(path)
    sizes = RunWish(
        max_model_len=min(DEFAULT_MODEL_LEN, config.max_positions) if context is None else context,
        max_num_seqs=concurrency,
        max_num_batched_tokens=max_num_batched_tokens,
        block_size=default_block_size(config) if block_size is None else block_size,
        prefix_cache=prefix_cache,
    )
    wish = named_wish(
        sizes, profile=profile, kv_cache_dtype=kv_cache_dtype, index_cache_dtype=index_cache_dtype, draft=draft
    )
    answer = plan_machine(config, found, Demand(wish=wish, images=images))
    changes = remedies(config, answer)
    if as_json:
        print_json(plan_document(answer, changes))
    else:
        typer.echo(plan_title(answer, RELEASE_NAME if path is None else str(path), is_here=typed.is_here))
        print_sections(plan_sections(answer, changes))
    if not answer.fits:
        raise typer.Exit(1)
