"""Shows that a comparison would notice: one mechanism at a time is broken, and the traces are compared.

The model as it is, run again in chunks, must be equal to the bit; every broken one must diverge, and first at the point
that its mechanism computes.  A control the prompt is too short for is reported, never counted as seen.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flash41.checkpoint.default import default_checkpoint
from flash41.config.architecture import ModelConfig
from flash41.config.huggingface import read_config
from flash41.config.names import named_wish
from flash41.config.run import Profile, RunWish
from flash41.config.run_rules import check
from flash41.engine.load import load_model
from flash41.errors import RequestError, complaint
from flash41.kernels.select import select_kernels
from flash41.tools.comparison.compare import Comparison, compare
from flash41.tools.comparison.dataflow import place
from flash41.tools.comparison.files import PREFIX
from flash41.tools.controls import CONTROLS, Control
from flash41.tools.traces import check_ids, trace

Array = NDArray[Any]
Progress = Callable[[str, int, int], None]
"""Called with (what runs, runs done, runs in all)."""

MOST_TOKENS = 256
"""Longest prompt that is made up; longer ones must be asked for."""
SEED = 41
UNCHANGED = "nothing (the model in chunks)"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProveWish:
    """What to run; names as on the command line."""

    directory: Path | None = None
    """Checkpoint; None is the embedded default."""
    ids: Sequence[int] | None = None
    """The prompt; None makes one up."""
    num_tokens: int | None = None
    """Its length if it is made up; None is long enough for every mechanism, within `MOST_TOKENS`."""
    profile: str = "vendor"
    backend: str = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What became of one control."""

    name: str
    passed: bool | None
    """None: not run."""
    point: str | None = None
    """The first point that diverged."""
    what: str = ""
    """What computes it, or why the control was not run."""
    rows: str = ""
    """Rows that nothing explains, of all."""


def prove(wish: ProveWish, progress: Progress | None = None) -> list[Proof]:
    """One proof per control, the unbroken model first; raises what opening or running refuses."""
    directory = default_checkpoint() if wish.directory is None else wish.directory
    config = read_config(directory)
    run = named_wish(RunWish(backend=wish.backend), profile=wish.profile)
    check(run, config)
    ids = _prompt(wish, config)
    tell = progress or (lambda _what, _done, _total: None)
    total = len(CONTROLS) + 2

    def traced(control: Control | None, chunks: Sequence[int] | None = None) -> Mapping[str, Array]:
        kernels = select_kernels(wish.backend)
        model = load_model(directory, run.profile, run.pool, kernels, change=control)
        arrays = trace(model, ids, chunks, points=("[!d]*",))  # nothing of drafts, whose stages are not loaded
        return {name.removeprefix(PREFIX): array for name, array in arrays.items()}

    tell("the model as it is", 0, total)
    healthy = traced(None)
    tell(UNCHANGED, 1, total)
    proofs = [_unchanged(compare(healthy, traced(None, _chunks(len(ids)))))]
    for done, control in enumerate(CONTROLS, 2):
        tell(control.name, done, total)
        reason = _idle(control, config, len(ids), run.profile)
        if reason is not None:
            proofs.append(Proof(name=control.name, passed=None, what=reason))
        else:
            proofs.append(_broken(control, compare(healthy, traced(control))))
    tell("done", total, total)
    return proofs


def _prompt(wish: ProveWish, config: ModelConfig) -> list[int]:
    if wish.ids is not None:
        check_ids(wish.ids, config.vocab_size)
        return list(wish.ids)
    wanted = max(control.tokens(config) or 0 for control in CONTROLS) + 4
    length = min(wanted, MOST_TOKENS) if wish.num_tokens is None else wish.num_tokens
    if not 2 <= length <= config.max_positions:
        raise RequestError(complaint("tokens", length, f"2 to {config.max_positions}"))
    draw = random.Random(SEED)
    marked = {config.tokens.image, config.tokens.pad}
    ids = [config.tokens.bos]
    while len(ids) < length:
        token = draw.randrange(config.vocab_size)
        if token not in marked:
            ids.append(token)
    return ids


def _chunks(length: int) -> list[int]:
    return [max(1, length // 3), 1, max(1, length // 4)]


def _idle(control: Control, config: ModelConfig, length: int, profile: Profile) -> str | None:
    """Why a control cannot show in this run."""
    needed = control.tokens(config)
    if needed is None:
        return "this model does not have it"
    if needed > length:
        return f"not run: shows from {needed:,} tokens on, this prompt has {length:,}"
    if control.needs_rounding and not profile.quantizes_activations:
        return f"not run: the same number in profile {profile.value}"
    return None


def _unchanged(found: Comparison) -> Proof:
    same = all(np.equal(one.worst, 0.0) for one in found.points) and not found.only_ours and not found.only_theirs
    first = next((one.point for one in found.points if one.worst), None)
    return Proof(name=UNCHANGED, passed=same, point=first, what="" if same else "must be equal to the bit")


def _broken(control: Control, found: Comparison) -> Proof:
    first, module = found.first, found.module
    if first is None or module is None:
        return Proof(name=control.name, passed=False, what="not noticed")
    return Proof(
        name=control.name,
        passed=place(first.point).kind in control.shows_at,
        point=first.point,
        what=module.what,
        rows=f"{first.num_beyond} of {first.num_rows}",
    )
