"""Everything a run needs to go on as if it had never stopped, in one file, replaced all at once.

    p/NAME   master      m/NAME, v/NAME, n/NAME   moments and updates of AdamW      metadata: progress as JSON

There is no random state to keep: what a step reads is a function of the seed and of where the run stands.
"""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from flash41.errors import CheckpointError, complaint

FORMAT = "flash41 training state 1"
"""The one key of the metadata: several would be written in any order."""


@dataclass(slots=True, kw_only=True)
class Progress:
    """How far a run has come."""

    seed: int
    stage: str
    """Which parameters are trained: target or drafter."""
    steps: int = 0
    """Updates of this stage."""
    tokens: int = 0
    """Tokens trained in this stage, padding not counted."""
    pool: int = 0
    batch: int = 0
    phase: str = ""


@dataclass(frozen=True, slots=True)
class Moments:
    """AdamW's memory of one parameter."""

    first: Tensor
    second: Tensor
    updates: Tensor
    """FP32 scalar: updates so far."""


def save(path: Path, progress: Progress, masters: dict[str, nn.Parameter], moments: dict[str, Moments]) -> None:
    """Writes the state beside its place and moves it there."""
    tensors = {f"p/{name}": value.detach() for name, value in masters.items()}
    tensors |= {f"m/{name}": one.first for name, one in moments.items()}
    tensors |= {f"v/{name}": one.second for name, one in moments.items()}
    tensors |= {f"n/{name}": one.updates for name, one in moments.items()}
    partial = path.with_name(f".{path.name}.partial")
    save_file(tensors, partial, {FORMAT: json.dumps(asdict(progress))})
    with partial.open("rb") as handle:
        os.fsync(handle.fileno())
    os.replace(partial, path)


def load(path: Path, masters: dict[str, nn.Parameter]) -> tuple[Progress, dict[str, Moments]]:
    """Fills the masters; CheckpointError for a file of something else or of another configuration."""
    try:
        with safe_open(path, "pt") as file:
            metadata, names = file.metadata() or {}, list(file.keys())
            if FORMAT not in metadata:
                raise CheckpointError(complaint(f"format of {path}", list(metadata), FORMAT))
            shapes = {name.removeprefix("p/"): file.get_slice(name).get_shape() for name in names if name[0] == "p"}
            _check(path, shapes, masters)
            for name, value in masters.items():
                with torch.no_grad():
                    value.copy_(file.get_tensor(f"p/{name}"))
            trained = [name.removeprefix("m/") for name in names if name.startswith("m/")]
            moments = {name: Moments(*(file.get_tensor(f"{part}/{name}") for part in "mvn")) for name in trained}
    except (OSError, SafetensorError) as error:
        raise CheckpointError(complaint(f"training state {path}", str(error), "a readable file")) from error
    return Progress(**json.loads(metadata[FORMAT])), moments


def _check(path: Path, shapes: dict[str, list[int]], masters: dict[str, nn.Parameter]) -> None:
    wrong = [
        name
        for name in sorted({*shapes, *masters})
        if name not in shapes or name not in masters or shapes[name] != list(masters[name].shape)
    ]
    if wrong:
        raise CheckpointError(complaint(f"tensors of {path}", wrong[:8], "those of the configuration"))
