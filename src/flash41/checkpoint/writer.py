"""Writes checkpoints in the released format: config.json, shards, index, tokenizer files.

The same arguments give the same bytes.  The directory appears complete or not at all, and only if every tensor is what
the schema says; all that is not is listed at once.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePath

from torch import Tensor
from torch import uint8 as torch_uint8

from flash41.checkpoint.directory import CONFIG_FILE, INDEX_FILE
from flash41.checkpoint.faults import Fault, FaultKind, FaultyCheckpointError, listed
from flash41.checkpoint.placement import Placement, encode_header, encode_index, place_below, place_in
from flash41.checkpoint.reader import DTYPES
from flash41.checkpoint.schema import schema
from flash41.checkpoint.staging import staged
from flash41.checkpoint.stored import TensorSpec
from flash41.config.architecture import ModelConfig
from flash41.config.huggingface import config_to_dict
from flash41.errors import CheckpointError, ConfigError, complaint

METADATA = {"format": "pt"}
"""What other readers expect to find in a header."""

Weights = Mapping[str, Tensor] | Callable[[str], Tensor]
"""Tensor by name: uint8 for packed FP4, E4M3 and E8M0, else BF16 or F32.  A callable is asked once per name."""


def write_checkpoint(
    directory: Path,
    config: ModelConfig,
    tensors: Weights,
    *,
    num_shards: int | None = None,
    max_shard_bytes: int | None = None,
    tokenizer_files: Mapping[str, bytes] | None = None,
    metadata: Mapping[str, str] | None = None,
    force: bool = False,
) -> None:
    """Writes a checkpoint of `num_shards` shards, or of shards up to `max_shard_bytes`; exactly one must be given.

    FaultyCheckpointError with every missing, unexpected, misshapen or mistyped tensor; CheckpointError when the target
    exists (see `staging.staged`); ConfigError for a number of shards that cannot be.
    """
    placement = _placement(config, num_shards, max_shard_bytes)
    files = {**_sidecars(config, placement), **_checked_names(tokenizer_files or {}, placement)}
    with staged(directory, force) as folder:
        for name, data in files.items():
            (folder / name).write_bytes(data)
        faults = list(_unexpected(tensors, placement))
        for shard, specs in placement.items():
            faults += _write_shard(folder / shard, specs, tensors, {**METADATA, **(metadata or {})})
        if faults:
            raise FaultyCheckpointError(faults, f"tensors of {directory}")


def encode_config(config: ModelConfig) -> bytes:
    """config.json of a model."""
    return json.dumps(config_to_dict(config), indent=2).encode() + b"\n"


def _placement(config: ModelConfig, num_shards: int | None, max_shard_bytes: int | None) -> Placement:
    specs = schema(config).values()
    if num_shards is not None and max_shard_bytes is None:
        return place_in(num_shards, specs)
    if max_shard_bytes is not None and num_shards is None:
        return place_below(max_shard_bytes, specs)
    raise ConfigError(complaint("num_shards, max_shard_bytes", (num_shards, max_shard_bytes), "exactly one of them"))


def _sidecars(config: ModelConfig, placement: Placement) -> dict[str, bytes]:
    files = {CONFIG_FILE: encode_config(config)}
    if len(placement) > 1:
        files[INDEX_FILE] = encode_index(placement)
    return files


def _checked_names(files: Mapping[str, bytes], placement: Placement) -> Mapping[str, bytes]:
    taken = {CONFIG_FILE, INDEX_FILE, *placement}
    odd = [name for name in files if name in taken or PurePath(name).name != name]
    if odd:
        raise CheckpointError(complaint("tokenizer files", odd, "plain names that nothing else has"))
    return files


def _unexpected(tensors: Weights, placement: Placement) -> Iterator[Fault]:
    if isinstance(tensors, Mapping):
        known = {spec.name for specs in placement.values() for spec in specs}
        names = tuple(name for name in tensors if name not in known)
        if names:
            yield Fault(kind=FaultKind.SCHEMA, message=f"unexpected {listed(names)}", names=names)


def _write_shard(
    path: Path, specs: tuple[TensorSpec, ...], tensors: Weights, metadata: Mapping[str, str]
) -> Iterator[Fault]:
    with path.open("wb") as file:
        file.write(encode_header(specs, metadata))
        for spec in specs:
            try:
                tensor = tensors[spec.name] if isinstance(tensors, Mapping) else tensors(spec.name)
            except KeyError:
                yield Fault(kind=FaultKind.SCHEMA, message=f"missing {spec.name}", names=(spec.name,))
                continue
            dtype = DTYPES[spec.dtype]
            if tuple(tensor.shape) != spec.shape or tensor.dtype is not dtype:
                got, wanted = f"{tensor.dtype} {list(tensor.shape)}", f"{dtype} {list(spec.shape)}"
                message = f"wrong {spec.name} {spec.dtype.value}: got {got}, expected {wanted}"
                yield Fault(kind=FaultKind.SCHEMA, message=message, names=(spec.name,))
                continue
            file.write(tensor.detach().cpu().contiguous().view(torch_uint8).numpy().data)
