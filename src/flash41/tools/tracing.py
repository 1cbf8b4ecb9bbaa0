"""From a directory and a wish to a trace file: opening, running, saving, with every refusal before weights are read."""

import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from flash41.config.huggingface import read_config
from flash41.config.names import named_wish
from flash41.config.run import Draft, RunWish
from flash41.config.run_rules import check
from flash41.engine.load import load_model
from flash41.engine.prompt_images import widen
from flash41.errors import CapacityError, RequestError, complaint
from flash41.kernels.select import select_kernels
from flash41.tools.adapters.all import check_like, find_adapter
from flash41.tools.adapters.record import to_theirs
from flash41.tools.comparison.files import IDS
from flash41.tools.picture_files import open_pictures
from flash41.tools.points import check_points, point_names
from flash41.tools.traces import Progress, check_ids, split, trace

POINTS = "trace/"
"""Begins the names of points in a file of ours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceWish:
    """What to run and what to keep; names as on the command line."""

    ids: Sequence[int]
    chunks: Sequence[int] | None = None
    points: Sequence[str] = ("*",)
    draft: bool = False
    images: Sequence[Path] = ()
    """Image files, one for each placeholder among the ids, in order."""
    profile: str = "vendor"
    kv_cache_dtype: str | None = None
    index_cache_dtype: str | None = None
    backend: str = "auto"
    threads: int | None = None
    like: str | None = None
    """Engine whose names and layouts the file has; None: ours."""


def save_trace(directory: Path, wish: TraceWish, out: Path, force: bool, progress: Progress | None = None) -> int:
    """Writes the trace of `wish` to `out` and returns its number of points.

    Raises RequestError for a target that cannot be made, or exists without `force`, and for points that the engine of
    `like` does not show; CapacityError if the file system refuses the file; and whatever opening or running refuses.
    """
    adapter = None if wish.like is None else find_adapter(wish.like)
    _check_target(out, force)
    config = read_config(directory)
    check_ids(wish.ids, config.vocab_size)
    pictures = open_pictures(wish.images, config)
    num_positions = len(widen(wish.ids, pictures, config.tokens.image)[0])
    if num_positions > config.max_positions:
        raise RequestError(
            complaint("number of token ids", num_positions, f"at most max_position_embeddings {config.max_positions}")
        )
    split(num_positions, wish.chunks)
    draft = Draft.ON if wish.draft else Draft.OFF
    run = named_wish(
        RunWish(backend=wish.backend, threads=wish.threads, draft=draft),
        profile=wish.profile,
        kv_cache_dtype=wish.kv_cache_dtype,
        index_cache_dtype=wish.index_cache_dtype,
    )
    check(run, config)
    check_points(wish.points, config, wish.draft, images=bool(pictures))
    if adapter is not None:
        points = point_names(config, wish.draft, images=bool(pictures))
        check_like(adapter, wish.points, points, config.mhc.streams)
    if wish.threads is not None:
        torch.set_num_threads(wish.threads)
    model = load_model(
        directory, run.profile, run.pool, select_kernels(wish.backend), drafts=True, images=bool(pictures)
    )
    arrays = trace(model, wish.ids, wish.chunks, wish.points, progress, wish.draft, pictures)
    traced = {name.removeprefix(POINTS): array for name, array in arrays.items() if name.startswith(POINTS)}
    others = {name: array for name, array in arrays.items() if not name.startswith(POINTS)}
    named = {POINTS + name: array for name, array in traced.items()}
    if adapter is not None:
        named = to_theirs(adapter, traced)
        del others[IDS]  # no engine shows them
    _write(out, {**others, **named})
    return len(named)


def _check_target(out: Path, force: bool) -> None:
    if out.suffix != ".npz":
        raise RequestError(complaint("output file", str(out), "a name that ends in .npz"))
    if os.path.lexists(out) and not force:
        raise RequestError(complaint("output file", str(out), "a name that does not exist yet", "or use force"))
    if out.is_dir():
        raise RequestError(complaint("output file", str(out), "a file", "a folder is never replaced"))
    folder = out.absolute().parent
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        raise RequestError(complaint("output folder", str(folder), "an existing folder that can be written"))


def _write(out: Path, arrays: dict[str, np.ndarray]) -> None:
    partial = out.with_name(f".{out.name}.{secrets.token_hex(4)}.partial")
    try:
        with partial.open("wb") as file:
            np.savez_compressed(file, **arrays)  # type: ignore[arg-type]  # a stub takes one name for a flag
        os.replace(partial, out)
    except OSError as error:
        raise CapacityError(complaint(f"writing {out}", str(error), "a file system that accepts it")) from error
    finally:
        partial.unlink(missing_ok=True)
