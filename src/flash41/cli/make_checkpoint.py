"""`flash41 make-checkpoint`: a whole release in true names, shapes and sizes, its data holes."""

from pathlib import Path
from typing import Annotated

import typer

from flash41.cli import options
from flash41.cli.common import human_bytes

RELEASE = "release"
ONLY_SPARSE = (
    "only sparse checkpoints, whose data are holes, can be made from a configuration of any size; add --sparse. "
    "For a small checkpoint with random weights use: flash41 make-tiny DIR"
)


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
    force: options.Force = False,
) -> None:
    """Write a checkpoint with the true names, shapes and sizes of a model, and no data.

    The files of the release claim 510 GB and occupy a few megabytes, so that inspecting, mapping and planning can
    be tried on any machine. It has no tokenizer, and its weights read as zero.
    """
    if not sparse:
        raise typer.BadParameter(ONLY_SPARSE, param_hint="--sparse")
    from rich.console import Console
    from rich.progress import Progress

    from flash41.checkpoint.release import release_config
    from flash41.checkpoint.sparse import write_sparse
    from flash41.config.huggingface import read_config

    config = release_config() if like == RELEASE else read_config(Path(like))
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("shards", total=None)
        write_sparse(
            directory, config, force=force, progress=lambda done, count: bar.update(task, completed=done, total=count)
        )
    typer.echo(f"{directory}: {_summary(directory)}")


def _summary(directory: Path) -> str:
    """What lies in the directory, how large it says it is, and what it occupies."""
    files = [path.stat() for path in directory.iterdir()]
    num_shards = len(list(directory.glob("*.safetensors")))
    apparent, real = sum(file.st_size for file in files), sum(file.st_blocks * 512 for file in files)
    return (
        f"{num_shards} sparse shard{'' if num_shards == 1 else 's'}, {apparent:,} bytes ({human_bytes(apparent)}), "
        f"of which {human_bytes(real)} occupy the disk"
    )
