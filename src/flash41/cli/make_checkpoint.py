"""`flash41 make-checkpoint`: a whole release in holes, or a slice of one with random weights."""

import re
from pathlib import Path
from typing import Annotated, Any

import typer

from flash41.cli import options
from flash41.cli.common import human_bytes

RELEASE = "release"
ONE_KIND = (
    "a checkpoint of any size is made sparse, its data holes (--sparse), or a slice with random weights "
    "(--slice layers=4,experts=16); give one of them. "
    "For a small checkpoint with random weights use: flash41 make-tiny DIR"
)
PART = re.compile(r"(layers|experts|engram)=([0-9]{1,18})")
SLICE_FORM = "layers=N,experts=M[,engram=ROWS]"


def make_checkpoint(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Directory to make.")],
    like: Annotated[
        str,
        typer.Option(
            "--like",
            metavar="release|config.json",
            help="Configuration: that of the released model, or of a config.json (or a directory that holds one).",
        ),
    ] = RELEASE,
    sparse: Annotated[bool, typer.Option("--sparse", help="Leave the data out as holes that read as zeros.")] = False,
    parts: Annotated[
        str | None,
        typer.Option(
            "--slice",
            metavar=SLICE_FORM,
            help="Random weights in true widths for so many layers, experts in each, and rows of one n-gram table.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Seed of a slice's weights.")] = 41,
    force: options.Force = False,
) -> None:
    """Write a checkpoint with the true names, shapes and formats of a model: all of it in holes, or a slice of it.

    --sparse: the files of the release claim 510 GB and occupy a few megabytes, so that inspecting, mapping and planning
    can be tried on any machine. It has no tokenizer, and its weights read as zero.

    --slice: every width is the model's, and an engine can run it. Of the release, 4 layers have all modes of attention,
    and 16 experts make 5 GB. The tokenizer is the one beside the configuration, else the small one of `make-tiny`.
    """
    if sparse == (parts is not None):
        raise typer.BadParameter(ONE_KIND, param_hint="--sparse or --slice")
    from rich.console import Console
    from rich.progress import DownloadColumn, Progress

    from flash41.checkpoint.release import release_config
    from flash41.checkpoint.sparse import write_sparse
    from flash41.config.huggingface import read_config
    from flash41.tools.slices import make_slice
    from flash41.tools.tiny import tokenizer_beside

    wanted = None if parts is None else _slice_wish(parts)
    config = release_config() if like == RELEASE else read_config(Path(like))
    console = Console(stderr=True)
    columns = [*Progress.get_default_columns(), *([] if sparse else [DownloadColumn()])]
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("shards" if sparse else "bytes", total=None)

        def progress(done: int, count: int) -> None:
            bar.update(task, completed=done, total=count)

        if wanted is None:
            write_sparse(directory, config, force=force, progress=progress)
        else:
            tokenizer = tokenizer_beside(None if like == RELEASE else Path(like))
            make_slice(directory, config, wanted, seed, tokenizer, progress, force)
    typer.echo(f"{directory}: {_summary(directory) if sparse else _slice_summary(directory)}")


def _slice_wish(parts: str) -> Any:
    """What is meant by ``layers=4,experts=16,engram=48000``."""
    from flash41.config.slices import SliceWish

    found: dict[str, int] = {}
    for part in parts.split(","):
        match = PART.fullmatch(part.strip())
        if match is None or match[1] in found:
            raise typer.BadParameter(f"got {part!r}, expected {SLICE_FORM}, each once", param_hint="--slice")
        found[match[1]] = int(match[2])
    missing = [name for name in ("layers", "experts") if name not in found]
    if missing:
        raise typer.BadParameter(f"{' and '.join(missing)} missing, expected {SLICE_FORM}", param_hint="--slice")
    return SliceWish(layers=found["layers"], experts=found["experts"], engram_rows=found.get("engram"))


def _slice_summary(directory: Path) -> str:
    """Its layers by mode, experts, and bytes."""
    from collections import Counter

    from flash41.config.huggingface import read_config
    from flash41.config.topology import topology
    from flash41.tools.slices import num_bytes

    config = read_config(directory)
    modes = Counter(spec.mode.value for spec in topology(config).layers)
    tables = ", ".join(f"{rows:,} n-gram rows" for rows in config.engram.table_rows) or "no n-gram table"
    count = num_bytes(config)
    return (
        f"{config.num_layers} layers ({', '.join(f'{number} {mode}' for mode, number in modes.items())}), "
        f"{config.moe.num_experts} experts each, {tables}, {count:,} bytes ({human_bytes(count)})"
    )


def _summary(directory: Path) -> str:
    """What lies in the directory, how large it says it is, and what it occupies."""
    files = [path.stat() for path in directory.iterdir()]
    num_shards = len(list(directory.glob("*.safetensors")))
    apparent, real = sum(file.st_size for file in files), sum(file.st_blocks * 512 for file in files)
    return (
        f"{num_shards} sparse shard{'' if num_shards == 1 else 's'}, {apparent:,} bytes ({human_bytes(apparent)}), "
        f"of which {human_bytes(real)} occupy the disk"
    )
