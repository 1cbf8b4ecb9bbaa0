"""Rules G1 to G7: which widths, owners, page sizes and tiles a pool can be laid out with.

G8 needs a budget and lives in `cache.budget`; G2 and G6 are demands of a backend and are checked where a backend states
them.  spec: config.md section 4.8.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from flash41.config.architecture import ModelConfig
from flash41.config.run import PoolDtype, PoolFormat
from flash41.errors import ConfigError, combined, complaint

CHANNEL_UNIT = 32
"""Channels that share a scale in every row format; widths are multiples of it."""
ROW_ALIGNMENT = 256
"""Bytes every zone, page and entry is aligned to at least."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GeometryInputs:
    """Everything the rules look at."""

    pool: PoolFormat
    """Storage of the two pools."""
    block_size: int
    """Tokens per page."""
    draft_tokens: int
    """Tokens drafted per step, 0 without drafting."""
    channels: int
    """Channels of a latent row."""
    index_channels: int
    """Channels of an index key."""
    owners: tuple[int, ...]
    """Layers that write a plane."""
    ratios: tuple[int, ...]
    """Tokens per compressed row of every layer."""
    tile_rows: int
    """Rows of an index tile: the model's `candidate_block_size`."""
    has_candidates: bool
    """Whether a candidate list is used as a tile table."""


def geometry_inputs(config: ModelConfig, pool: PoolFormat, block_size: int, draft_tokens: int) -> GeometryInputs:
    """The part of a model and of a wish that decides a pool's geometry."""
    return GeometryInputs(
        pool=pool,
        block_size=block_size,
        draft_tokens=draft_tokens,
        channels=config.attention.head_dim,
        index_channels=config.indexer.head_dim,
        owners=config.attention.kv_source_layer_ids,
        ratios=config.attention.compress_ratios[: config.num_layers],
        tile_rows=config.indexer.candidate_block_size,
        has_candidates=config.indexer.candidate_source_layer_id is not None,
    )


def geometry_faults(inputs: GeometryInputs) -> list[str]:
    """Messages of every broken rule of G1, G3, G4, G5 and G7, in order; empty if none."""
    faults = [*_widths(inputs), *_pools(inputs)]
    owners = list(_owners(inputs))
    # Page sizes are judged by the owners' ratios, so broken owners hide them.
    faults += owners or list(_page_size(inputs))
    if inputs.draft_tokens < 0:  # G7
        faults.append(complaint("draft tokens", inputs.draft_tokens, ">= 0"))
    return faults


def check_geometry(inputs: GeometryInputs) -> None:
    """Raises one ConfigError with every fault."""
    faults = geometry_faults(inputs)
    if faults:
        raise ConfigError(combined(faults, None if len(faults) == 1 else f"cache geometry: {len(faults)} faults"))


def check_whole_rows(main_row_bytes: int) -> None:
    """Rule G2, for a backend whose rows must start at multiples of 256 bytes; raises ConfigError."""
    if main_row_bytes % ROW_ALIGNMENT:
        raise ConfigError(f"main row: got {main_row_bytes} bytes, expected a multiple of {ROW_ALIGNMENT}")


def check_tile_rows(tile_rows: int, candidate_block_size: int) -> None:
    """Rule G6, for a backend with tiles of its own: the candidate list is its tile table.  Raises ConfigError."""
    if tile_rows != candidate_block_size:
        raise ConfigError(f"index tile: got {tile_rows} rows, expected candidate_block_size {candidate_block_size}")


def smallest_block_size(tile_rows: int, ratios: Sequence[int]) -> int:
    """Fewest tokens whose rows fill whole tiles of every owner, even as rule R13 wants it."""
    return math.lcm(2, *(tile_rows * ratio for ratio in ratios))


def _widths(inputs: GeometryInputs) -> Iterator[str]:  # G1
    for name, width in (("head_dim", inputs.channels), ("index_head_dim", inputs.index_channels)):
        if width <= 0 or width % CHANNEL_UNIT:
            yield complaint(name, width, f"a positive multiple of {CHANNEL_UNIT}")


def _pools(inputs: GeometryInputs) -> Iterator[str]:
    if inputs.pool.main is PoolDtype.FP8:  # R12, repeated because no layout exists
        yield complaint("kv_cache_dtype", inputs.pool.main.value, "'bf16' or 'fp4'", "there is no FP8 main pool")
    tile = inputs.tile_rows
    if inputs.pool.index is PoolDtype.FP8 and tile > 0 and inputs.index_channels % tile:
        reason = "an FP8 tile interleaves as many channels as it has rows"
        yield complaint("index_head_dim", inputs.index_channels, f"a multiple of the tile's {tile} rows", reason)


def _owners(inputs: GeometryInputs) -> Iterator[str]:  # G3
    owners, ratios = inputs.owners, inputs.ratios
    known = all(0 <= owner < len(ratios) and ratios[owner] in (1, 2) for owner in owners)
    if not owners or not known or len(set(owners)) != len(owners):
        yield complaint("owners", list(owners), "unique layers of ratio 1 or 2")


def _page_size(inputs: GeometryInputs) -> Iterator[str]:
    size, tile = inputs.block_size, inputs.tile_rows
    if size <= 0:
        yield complaint("block_size", size, "> 0")
        return
    ratios = sorted({inputs.ratios[owner] for owner in inputs.owners})
    broken = [ratio for ratio in ratios if size % ratio]
    yield from (complaint("block_size", size, f"a multiple of ratio {ratio}") for ratio in broken)  # G4
    tiled = inputs.has_candidates or inputs.pool.index is PoolDtype.FP8
    if tiled and tile <= 0:
        yield complaint("candidate_block_size", tile, "> 0")
    elif tiled and any(size % (ratio * tile) for ratio in ratios):  # G5
        smallest = smallest_block_size(tile, ratios)
        yield complaint(
            "block_size", size, f"rows per PAGE in whole tiles of {tile}; smallest legal block_size {smallest}"
        )
