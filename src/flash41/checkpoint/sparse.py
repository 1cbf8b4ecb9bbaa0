"""A checkpoint with true names, shapes, dtypes and sizes whose data are holes: 510 GB that occupy a few megabytes.

Shows a whole release to every tool that reads headers, and lets the full model be opened and mapped, on any machine.
All weights read as zero.  It has no tokenizer.
"""

import os
from collections.abc import Callable, Iterable
from pathlib import Path

from flash41.checkpoint.directory import CONFIG_FILE, INDEX_FILE
from flash41.checkpoint.placement import ENGRAM, encode_header, encode_index, place_in
from flash41.checkpoint.schema import schema
from flash41.checkpoint.staging import staged
from flash41.checkpoint.stored import TensorSpec
from flash41.checkpoint.writer import METADATA, encode_config
from flash41.config.architecture import ModelConfig
from flash41.errors import CheckpointError, complaint

BYTES_PER_SHARD = 6_700_000_000
"""Payload of a shard where no number is asked for, Engram apart: cuts the release into its 46 + 2 shards."""
SLACK_BYTES = 2**20
"""Disk space a file system may spend on a file beyond its header and still count as keeping holes."""

Progress = Callable[[int, int], None]
"""Called with (shards written, shards in all)."""


def write_sparse(
    directory: Path,
    config: ModelConfig,
    *,
    num_shards: int | None = None,
    force: bool = False,
    progress: Progress | None = None,
) -> None:
    """Writes headers, index and config.json, and extends each shard to its full length without writing data.

    Without `num_shards` a model is cut as finely as the release: one shard per 6.7 GB and one per Engram layer.
    CheckpointError when the file system would fill the holes (tried first with a small file) or has no such sizes;
    nothing is left behind then.  ConfigError for a number of shards the placement rule cannot fill.
    """
    specs = schema(config).values()
    placement = place_in(num_shards or _num_shards(config, specs), specs)
    with staged(directory, force) as folder:
        _write_holes(folder / "probe", b"", 64 * SLACK_BYTES)
        (folder / "probe").unlink()
        (folder / CONFIG_FILE).write_bytes(encode_config(config))
        if len(placement) > 1:
            (folder / INDEX_FILE).write_bytes(encode_index(placement))
        for number, (shard, held) in enumerate(placement.items(), 1):
            _write_holes(folder / shard, encode_header(held, METADATA), _payload_bytes(held))
            if progress is not None:
                progress(number, len(placement))


def _num_shards(config: ModelConfig, specs: Iterable[TensorSpec]) -> int:
    body_bytes = _payload_bytes(spec for spec in specs if spec.subsystem not in ENGRAM)
    return -(-body_bytes // BYTES_PER_SHARD) + len(config.engram.layer_ids)


def _payload_bytes(specs: Iterable[TensorSpec]) -> int:
    return sum(spec.num_bytes for spec in specs)


def _write_holes(path: Path, header: bytes, payload_bytes: int) -> None:
    with path.open("wb") as file:
        file.write(header)
        file.truncate(len(header) + payload_bytes)
        file.flush()
        os.fsync(file.fileno())  # blocks are counted when they are allocated, which may be late
    occupied = path.stat().st_blocks * 512
    if occupied > len(header) + SLACK_BYTES:
        condition = f"at most {len(header) + SLACK_BYTES}"
        remedy = "this file system fills holes; choose another"
        raise CheckpointError(complaint(f"disk space of {path.name}", occupied, condition, remedy))
