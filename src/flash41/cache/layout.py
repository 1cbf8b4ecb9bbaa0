"""`layout_id`: the name of what a cached page or a kept image means.

Two runs that could produce different bytes or different selections have different names, so a prefix of one is never
taken for a prefix of the other: the name begins every hash chain, and it is what a transfer of pages must agree on.
spec: cache.md section 3, decision D11.
"""

from flash41.cache.geometry import PoolGeometry
from flash41.config.run import Draft, Profile
from flash41.errors import ConfigError, complaint

FORMAT_GENERATION = "rings-2"
"""Arrangement of pages and entries: rings instead of tails, images in position order."""
ROTATION_VERSION = "rope-1"
"""Rotary tables: FP32 angles, latent rows rotated at their group's first position."""
ROUNDING_VERSION = "qat-1"
"""Rounding of rows: scales and ties of number-formats.md sections 2 to 4."""
TIE_RULE = "smaller-position"
"""Which of two rows with equal scores is selected."""


def layout_id(
    geometry: PoolGeometry,
    *,
    model_hash: str,
    profile: Profile,
    decoder_replay: bool = False,
    prefix_replay: bool = False,
    draft: Draft = Draft.OFF,
) -> str:
    """The name, as `key=value` terms with semicolons between them.

    `model_hash` covers configuration and weights; raises ConfigError where it is not hexadecimal, since a separator in
    it could make two names equal.
    """
    if not model_hash or not set(model_hash) <= set("0123456789abcdef"):
        raise ConfigError(complaint("model hash", model_hash, "lower-case hexadecimal digits"))
    replay = "+".join(name for name, on in (("decoder", decoder_replay), ("prefix", prefix_replay)) if on)
    terms = {
        "format": FORMAT_GENERATION,
        "main": geometry.pool.main.value,
        "index": geometry.pool.index.value,
        "index_tile": geometry.index.tile_rows,
        "layers": geometry.num_layers,
        "owners": ",".join(f"{owner.layer_id}/{owner.ratio}" for owner in geometry.owners),
        "page": geometry.block_size,
        "window": geometry.window,
        "channels": geometry.channels,
        "index_channels": geometry.index.channels,
        "history": geometry.history_length,
        "draft_tokens": geometry.draft_tokens,
        "model": model_hash,
        "profile": profile.value,
        "replay": replay or "off",
        "draft": draft.value,
        "rope": ROTATION_VERSION,
        "rounding": ROUNDING_VERSION,
        "ties": TIE_RULE,
    }
    return ";".join(f"{key}={value}" for key, value in terms.items())
