"""What a store holds, in integers: how many slots, windows and planes, and how deep their rings are.

    window    ring = window + drafts of a step               per slot and layer
    members   depth = largest ratio + drafts of a step       per slot and owner that pools several tokens

The drafts of a step are what a request may have to take back.  spec: cache.md section 2.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from flash41.config.architecture import ModelConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreShape:
    """What a store must hold, in integers; made from the model's configuration by whoever builds the store."""

    num_slots: int
    """Requests at once."""
    max_positions: int
    """Longest request."""
    num_layers: int
    """Layers with a window, draft stages included where they are used."""
    window: int
    """Positions a query sees."""
    ring: int
    """Rows kept per layer, at least `window`."""
    channels: int
    """Channels of a window or compressed row."""
    index_channels: int
    """Channels of an index key."""
    owner_ratios: Mapping[int, int]
    """Tokens per row of each plane, by owner."""
    member_depth: int
    """Positions kept of an open group."""

    @property
    def revocable(self) -> int:
        """Positions that may be taken back."""
        return self.ring - self.window


def store_shape(config: ModelConfig, num_slots: int, max_positions: int, draft_tokens: int = 0) -> StoreShape:
    """What a store for the text model holds: a window per layer, a plane per owner.

    With `draft_tokens` per step the draft stages have windows too, and every ring is deeper by that many rows.
    """
    ratios = config.attention.compress_ratios
    return StoreShape(
        num_slots=num_slots,
        max_positions=max_positions,
        num_layers=config.num_layers + (config.dspark.num_stages if draft_tokens else 0),
        window=config.attention.window,
        ring=config.attention.window + draft_tokens,
        channels=config.attention.head_dim,
        index_channels=config.indexer.head_dim,
        owner_ratios={owner: ratios[owner] for owner in config.attention.kv_source_layer_ids},
        member_depth=max(ratios) + draft_tokens,
    )
