"""Bytes of the two currencies of the cache: PAGE, which grows with history, and STATE, one entry per request.

A page holds `block_size` tokens of every owner at once: the main rows of all owners behind each other, and in a plane
of its own for each owner the index keys.  A STATE entry holds what a request needs to go on: a ring of window rows per
layer, rings of FP32 members of open groups per owner, and the cursor.  For the release with BF16 main, FP8 index, no
drafts (bytes; rows of 1024):

    page        | owner 2: 128 rows | owner 8: 128 | owner 14: 128 | owner 20: 256 |   655,360
    index       16,896 + 16,896 + 16,896 + 33,792                                       84,480     PAGE 739,840
    entry       | window 40*128*1024 | compress_kv | compress_score | cursor |        5,276,672   STATE

A token costs PAGE / block_size = 2,890 bytes, a request STATE + tokens * 2,890.  Integers only: knows nothing of
tensors, of requests or of where memory comes from.  spec: cache.md sections 1 and 2.
"""

from dataclasses import dataclass
from fractions import Fraction

from flash41.cache.geometry_rules import ROW_ALIGNMENT, check_geometry, geometry_inputs
from flash41.cache.index_layout import IndexLayout, index_layout
from flash41.config.architecture import ModelConfig
from flash41.config.run import PoolDtype, PoolFormat

TABLE_ENTRY_BYTES = 4
"""A page id in a page table, int32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerGeometry:
    """One owner's share of a page."""

    layer_id: int
    """The layer that writes the plane."""
    ratio: int
    """Tokens per row."""
    rows_per_page: int
    """Rows of one page, block_size / ratio."""
    main_row_offset: int
    """Main rows of the page that belong to earlier owners."""
    main_bytes: int
    """Bytes of its main rows per page."""
    index_bytes: int
    """Bytes of its index keys per page; the stride of a page id in its index plane."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateField:
    """One array of a STATE entry."""

    name: str
    """window, compress_kv, compress_score or cursor."""
    shape: tuple[int, ...]
    """Extent by axis, the last one in elements as stored (a packed window row counts bytes)."""
    offset_bytes: int
    """Start inside the entry, aligned."""
    num_bytes: int
    """Bytes without padding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolGeometry:
    """Every size of a pool that does not depend on how many pages and slots it has."""

    pool: PoolFormat
    """Storage of rows."""
    block_size: int
    """Tokens per page."""
    draft_tokens: int
    """Tokens drafted per step, 0 without drafting."""
    num_layers: int
    """Layers with a window, draft stages included where they run."""
    window: int
    """Positions a query sees."""
    window_ring: int
    """Window rows kept per layer: window + drafts, so that a verified block can be written before it is read."""
    compressor_ring: int
    """Positions kept of open groups, one depth for all owners: largest ratio + drafts."""
    channels: int
    """Channels of a latent row."""
    history_length: int
    """Token ids the cursor carries for the n-grams."""
    main_row_bytes: int
    """Bytes of a compressed row."""
    window_row_bytes: int
    """Bytes of a window row."""
    index: IndexLayout
    """Bytes of an index key."""
    alignment_bytes: int
    """Alignment of pages, entries and fields: a latent row, at least 256 bytes; 256 where rows are packed."""
    owners: tuple[OwnerGeometry, ...]
    """Owners in ascending order."""
    state_fields: tuple[StateField, ...]
    """Fields of a STATE entry in order."""

    @property
    def page_main_bytes(self) -> int:
        """Main rows of one page, aligned; the stride of a page id in the main zone."""
        return aligned(sum(owner.main_bytes for owner in self.owners), self.alignment_bytes)

    @property
    def page_index_bytes(self) -> int:
        """Index keys of one page, over all owners."""
        return sum(owner.index_bytes for owner in self.owners)

    @property
    def page_bytes(self) -> int:
        """PAGE: bytes of one page."""
        return self.page_main_bytes + self.page_index_bytes

    @property
    def page_rows(self) -> int:
        """Rows of one page over all owners, the same for main and index."""
        return sum(owner.rows_per_page for owner in self.owners)

    @property
    def bytes_per_token(self) -> Fraction:
        """PAGE over its tokens, exactly."""
        return Fraction(self.page_bytes, self.block_size)

    @property
    def state_bytes(self) -> int:
        """STATE: bytes of one entry, aligned."""
        last = self.state_fields[-1]
        return aligned(last.offset_bytes + last.num_bytes, self.alignment_bytes)

    @property
    def image_bytes(self) -> int:
        """Bytes of a kept image in position order: the last `window` rows per layer, whatever the ring's depth.

        At a page boundary no group is open, and the cursor is the boundary itself, so nothing else is kept.
        """
        return self.num_layers * self.window * self.window_row_bytes

    @property
    def image_pages(self) -> int:
        """Pages that a whole STATE entry would fill, where images are carved from pages."""
        return self.pages_behind(self.state_bytes)

    def owner(self, layer_id: int) -> OwnerGeometry:
        """The share of the owner `layer_id`; raises KeyError for any other layer."""
        for owner in self.owners:
            if owner.layer_id == layer_id:
                return owner
        raise KeyError(layer_id)

    def state_field(self, name: str) -> StateField:
        """The field of that name; raises KeyError if there is none."""
        for state_field in self.state_fields:
            if state_field.name == name:
                return state_field
        raise KeyError(name)

    def pages_behind(self, num_bytes: int) -> int:
        """Pages whose bytes are at least `num_bytes`."""
        return -(-num_bytes // self.page_bytes)

    def pages_for(self, num_tokens: int) -> int:
        """Pages that hold `num_tokens` tokens of one request."""
        return -(-num_tokens // self.block_size)

    def request_bytes(self, num_tokens: int) -> int:
        """Bytes a request of `num_tokens` occupies: one entry and whole pages."""
        return self.state_bytes + self.pages_for(num_tokens) * self.page_bytes

    def table_bytes(self, num_requests: int, num_positions: int) -> int:
        """Bytes of the int32 page table that a step uploads."""
        return TABLE_ENTRY_BYTES * num_requests * self.pages_for(num_positions)

    @property
    def worst_tail_bytes(self) -> int:
        """Bytes of a request's last page that hold nothing when the page holds a single token, rounded down."""
        return int((self.block_size - 1) * self.bytes_per_token)


def pool_geometry(config: ModelConfig, pool: PoolFormat, *, block_size: int, draft_tokens: int = 0) -> PoolGeometry:
    """Geometry of a model's pool; raises ConfigError with every broken rule of G1, G3, G4, G5 and G7."""
    check_geometry(geometry_inputs(config, pool, block_size, draft_tokens))
    channels = config.attention.head_dim
    main_row, window_row = row_bytes(pool.main, channels)
    index = index_layout(pool.index, config.indexer.head_dim, config.indexer.candidate_block_size)
    # Packed addresses are bytes; all others should be whole rows of one view.
    alignment = ROW_ALIGNMENT if pool.main is PoolDtype.FP4 else max(main_row, ROW_ALIGNMENT)
    owners = _owners(config, block_size, main_row, index)
    num_layers = config.num_layers + (config.dspark.num_stages if draft_tokens else 0)
    window_ring = config.attention.window + draft_tokens
    compressor_ring = max(owner.ratio for owner in owners) + draft_tokens
    history = config.engram.max_ngram - 1
    members = (len(owners), compressor_ring, channels)
    stored = window_row if pool.main is PoolDtype.FP4 else channels
    fields = (
        ("window", (num_layers, window_ring, stored), num_layers * window_ring * window_row),
        ("compress_kv", members, 4 * len(owners) * compressor_ring * channels),
        ("compress_score", members, 4 * len(owners) * compressor_ring * channels),
        ("cursor", (1 + history,), 8 * (1 + history)),
    )
    return PoolGeometry(
        pool=pool,
        block_size=block_size,
        draft_tokens=draft_tokens,
        num_layers=num_layers,
        window=config.attention.window,
        window_ring=window_ring,
        compressor_ring=compressor_ring,
        channels=channels,
        history_length=history,
        main_row_bytes=main_row,
        window_row_bytes=window_row,
        index=index,
        alignment_bytes=alignment,
        owners=owners,
        state_fields=_placed(fields, alignment),
    )


def row_bytes(main: PoolDtype, channels: int) -> tuple[int, int]:
    """Bytes of a main row and of a window row: FP4/16 goes with FP8/32 windows, other pools store both alike."""
    if main is PoolDtype.FP4:
        return channels // 2 + channels // 16, channels + channels // 32
    size = {PoolDtype.BF16: 2, PoolDtype.FP32: 4}[main] * channels
    return size, size


def aligned(count: int, alignment: int) -> int:
    """The smallest multiple of `alignment` that is at least `count`."""
    return -(-count // alignment) * alignment


def exact_window_halo(window: int, num_layers: int) -> int:
    """Last tokens that must be recomputed through `num_layers` layers for an exact window: W + (n - 1)(W - 1)."""
    return window + (num_layers - 1) * (window - 1)


def _owners(config: ModelConfig, block_size: int, main_row: int, index: IndexLayout) -> tuple[OwnerGeometry, ...]:
    owners, offset = [], 0
    for layer_id in config.attention.kv_source_layer_ids:
        ratio = config.attention.compress_ratios[layer_id]
        rows = block_size // ratio
        owners.append(
            OwnerGeometry(
                layer_id=layer_id,
                ratio=ratio,
                rows_per_page=rows,
                main_row_offset=offset,
                main_bytes=rows * main_row,
                index_bytes=rows * index.row_bytes,
            )
        )
        offset += rows
    return tuple(owners)


def _placed(fields: tuple[tuple[str, tuple[int, ...], int], ...], alignment: int) -> tuple[StateField, ...]:
    placed, end = [], 0
    for name, shape, num_bytes in fields:
        start = aligned(end, alignment)
        placed.append(StateField(name=name, shape=shape, offset_bytes=start, num_bytes=num_bytes))
        end = start + num_bytes
    return tuple(placed)
