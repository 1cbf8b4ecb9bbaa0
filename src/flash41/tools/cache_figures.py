"""What a model's cache costs, for every pair of pools and with or without drafting: pages, entries, tokens.

The figures come from `cache.geometry` alone.  Where a page size or a width cannot be laid out there are no figures, but
the rules that say so.  spec: cache.md section 2.
"""

from dataclasses import asdict, dataclass

from flash41.cache.budget import capacity_statement
from flash41.cache.geometry import PoolGeometry, pool_geometry
from flash41.cache.geometry_rules import geometry_faults, geometry_inputs
from flash41.config.architecture import ModelConfig
from flash41.config.run import PoolDtype, PoolFormat, Profile, RunWish


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheFigures:
    """Geometries of all pools of a model, or why there are none."""

    block_size: int
    """Tokens per page."""
    max_positions: int
    """Longest request of the model."""
    geometries: tuple[PoolGeometry, ...]
    """Pools without drafting, then with it where the model drafts."""
    faults: tuple[str, ...]
    """Broken rules of pools that are not shown."""

    def to_dict(self) -> dict[str, object]:
        """All of it as JSON values."""
        return {
            "block_size": self.block_size,
            "pools": [_figures(geometry, self.max_positions) for geometry in self.geometries],
            "faults": list(self.faults),
        }


def cache_figures(config: ModelConfig, block_size: int | None = None) -> CacheFigures:
    """Figures of every pair of pools that some profile allows, at a page size or the default one."""
    size = RunWish().block_size if block_size is None else block_size
    widths = (0, config.dspark.block_size) if config.dspark.num_stages else (0,)
    geometries, faults = [], dict[str, None]()
    for drafts in widths:
        for pool in pool_pairs(drafting=drafts > 0):
            broken = geometry_faults(geometry_inputs(config, pool, size, drafts))
            faults.update(dict.fromkeys(broken))
            if not broken:
                geometries.append(pool_geometry(config, pool, block_size=size, draft_tokens=drafts))
    return CacheFigures(
        block_size=size, max_positions=config.max_positions, geometries=tuple(geometries), faults=tuple(faults)
    )


def pool_pairs(*, drafting: bool) -> tuple[PoolFormat, ...]:
    """Every pair of pools that a profile allows, once, in the order of the profiles; S4 binds `atom` while drafting."""
    pairs = [
        pool
        for profile in Profile
        for pool in profile.allowed_pools
        if not (drafting and profile is Profile.ATOM and pool.main is not PoolDtype.BF16)
    ]
    return tuple(dict.fromkeys(pairs))


def _figures(geometry: PoolGeometry, max_positions: int) -> dict[str, object]:
    rate = geometry.bytes_per_token
    return {
        "main": geometry.pool.main.value,
        "index": geometry.pool.index.value,
        "draft_tokens": geometry.draft_tokens,
        "main_row_bytes": geometry.main_row_bytes,
        "window_row_bytes": geometry.window_row_bytes,
        "index_row_bytes": geometry.index.row_bytes,
        "page_main_bytes": geometry.page_main_bytes,
        "page_index_bytes": geometry.page_index_bytes,
        "page_bytes": geometry.page_bytes,
        "owners": [asdict(owner) for owner in geometry.owners],
        "bytes_per_token": rate.numerator if rate.denominator == 1 else float(rate),
        "state_fields": {field.name: field.num_bytes for field in geometry.state_fields},
        "state_bytes": geometry.state_bytes,
        "image_bytes": geometry.image_bytes,
        "image_pages": geometry.image_pages,
        "window_ring": geometry.window_ring,
        "compressor_ring": geometry.compressor_ring,
        "request": capacity_statement(geometry),
        "longest_request_bytes": geometry.request_bytes(max_positions),
    }
