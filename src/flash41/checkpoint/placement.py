"""Which tensor goes into which shard, and the bytes of a shard's header.

Rule: tensors in schema order (embedding, layers, norm, head, drafts, vision) over the first shards; then the six
tensors of each Engram layer alone in a shard of their own, layers ascending.  With 48 shards and the release's two
Engram layers these are shards 1 to 46, 47 and 48.  A single shard holds everything.

Inside a shard wider elements come first, so that every tensor is aligned to its element.  Integers only.
spec: checkpoint.md section 4.
"""

import json
from collections.abc import Iterable, Mapping, Sequence

from flash41.checkpoint.directory import SINGLE_FILE
from flash41.checkpoint.headers import METADATA
from flash41.checkpoint.stored import Subsystem, TensorSpec
from flash41.errors import ConfigError, complaint

ALIGNMENT = 8
"""The data of a shard begins at a multiple of this."""

ENGRAM = (Subsystem.ENGRAM_TABLE, Subsystem.ENGRAM_PROJECTION, Subsystem.ENGRAM_NORM)

Placement = Mapping[str, tuple[TensorSpec, ...]]
"""Shard name to its tensors, in file order."""


def place_in(num_shards: int, specs: Iterable[TensorSpec]) -> Placement:
    """Shards of nearly equal size: a tensor goes where its first byte falls; ConfigError when a shard stays empty."""
    body, tables = _divided(specs)
    if num_shards == 1:
        return _numbered([[*body, *(spec for table in tables for spec in table)]])
    num_body = num_shards - len(tables)
    total_bytes = sum(spec.num_bytes for spec in body)
    groups: list[list[TensorSpec]] = [[] for _ in range(max(num_body, 0))]
    position = 0
    for spec in body if groups else ():
        groups[position * num_body // total_bytes].append(spec)
        position += spec.num_bytes
    if not groups or not all(groups):
        condition = f"1, or more than {len(tables)} and few enough that no shard is empty"
        raise ConfigError(complaint("number of shards", num_shards, condition))
    return _numbered([*groups, *tables])


def place_below(max_shard_bytes: int, specs: Iterable[TensorSpec]) -> Placement:
    """As few shards as the limit on their payload allows, filled in order; a larger tensor gets its own shard."""
    if max_shard_bytes < 1:
        raise ConfigError(complaint("bytes of a shard", max_shard_bytes, ">= 1"))
    body, tables = _divided(specs)
    everything = [*body, *(spec for table in tables for spec in table)]
    if sum(spec.num_bytes for spec in everything) <= max_shard_bytes:
        return _numbered([everything])
    groups: list[list[TensorSpec]] = [[]]
    filled = 0
    for spec in body:
        if groups[-1] and filled + spec.num_bytes > max_shard_bytes:
            groups.append([])
            filled = 0
        groups[-1].append(spec)
        filled += spec.num_bytes
    return _numbered([*groups, *tables])


def encode_header(specs: Sequence[TensorSpec], metadata: Mapping[str, str]) -> bytes:
    """Length and JSON of a shard that holds these tensors back to back, padded with spaces to the alignment."""
    document: dict[str, object] = {METADATA: dict(metadata)} if metadata else {}
    position = 0
    for spec in specs:
        end = position + spec.num_bytes
        document[spec.name] = {"dtype": spec.dtype.value, "shape": spec.shape, "data_offsets": (position, end)}
        position = end
    text = json.dumps(document, separators=(",", ":")).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


def encode_index(placement: Placement) -> bytes:
    """`model.safetensors.index.json` of a placement, names ascending."""
    shard_of = {spec.name: shard for shard, specs in placement.items() for spec in specs}
    total_bytes = sum(spec.num_bytes for specs in placement.values() for spec in specs)
    document = {"metadata": {"total_size": total_bytes}, "weight_map": dict(sorted(shard_of.items()))}
    return json.dumps(document, indent=2).encode() + b"\n"


def _divided(specs: Iterable[TensorSpec]) -> tuple[list[TensorSpec], list[list[TensorSpec]]]:
    """Everything but Engram, and the Engram tensors of each layer."""
    body: list[TensorSpec] = []
    tables: dict[int | None, list[TensorSpec]] = {}
    for spec in specs:
        if spec.subsystem in ENGRAM:
            tables.setdefault(spec.block_id, []).append(spec)
        else:
            body.append(spec)
    return body, list(tables.values())


def _numbered(groups: Sequence[Sequence[TensorSpec]]) -> Placement:
    aligned = [tuple(sorted(group, key=lambda spec: -spec.dtype.element_bytes)) for group in groups]
    if len(aligned) == 1:
        return {SINGLE_FILE: aligned[0]}
    return {
        f"model-{number:05}-of-{len(aligned):05}.safetensors": group for number, group in enumerate(aligned, start=1)
    }
