"""Masters to a checkpoint in the released format: the numbers every forward of training saw, as codes and scales."""

from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from flash41.checkpoint.quantize import quantize_dense, quantize_expert, quantize_table
from flash41.checkpoint.stored import StoredDtype, Subsystem
from flash41.checkpoint.writer import write_checkpoint
from flash41.numerics.scaled import Quantized
from training.model.masters import Masters


def export(directory: Path, masters: Masters, tokenizer_files: Mapping[str, bytes], num_shards: int = 3) -> None:
    """Writes the checkpoint of `masters`, replacing one that is there."""
    write_checkpoint(
        directory,
        masters.config,
        stored_weights(masters),
        num_shards=num_shards,
        tokenizer_files=tokenizer_files,
        force=True,
    )


def stored_weights(masters: Masters) -> Callable[[str], Tensor]:
    """A function from tensor name to stored tensor."""
    kept: dict[str, Quantized] = {}

    def quantized(prefix: str) -> Quantized:
        if prefix not in kept:
            name = f"{prefix}.weight"
            spec, value = masters.specs[name], masters.value(name).detach()
            if spec.subsystem is Subsystem.ENGRAM_TABLE:
                kept[prefix] = quantize_table(value)
            else:
                kept[prefix] = quantize_expert(value) if spec.dtype is StoredDtype.I8 else quantize_dense(value)
        return kept[prefix]

    def stored(name: str) -> Tensor:
        prefix, _, leaf = name.rpartition(".")
        if leaf == "scale":
            return quantized(prefix).scales
        spec = masters.specs[name]
        if spec.dtype in (StoredDtype.I8, StoredDtype.F8_E4M3):
            return quantized(prefix).codes
        return masters.value(name).detach().to(torch.float32 if spec.dtype is StoredDtype.F32 else torch.bfloat16)

    return stored
