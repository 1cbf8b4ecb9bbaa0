"""What pictures cost a run: rows of encoded ones that are kept, patches of a step, memory of the image encoder.

    rows        of 8 pictures of the largest cost; with a budget at most a sixteenth of it, but always of one picture
    patches     those of the largest picture: a step encodes one such, or several smaller ones
    encoder     what the tower holds of one picture: eight vectors a patch, and bands of logits and of rows

Rows are part of the cache budget; what the encoder holds while it runs is beside it, as what a forward holds.
Integers only.  spec: vision.md sections 2, 4 and 8.
"""

from dataclasses import dataclass

from flash41.config.architecture import ModelConfig, VisionConfig
from flash41.config.run import RunWish

KEPT = 8
"""Pictures of the largest cost whose rows are kept."""
LARGEST_SHARE = 16
"""Rows take at most this fraction of a budget, and one picture's always."""
VECTORS = 8
"""Of one patch at the same time: the residual, q, k, v, attention twice, and what is added."""
LOGITS_PER_BAND = 1 << 22
LOGIT_BYTES = 64
"""Of one logit: FP64 sums, FP32, exponentials, what they come from, and what an allocator keeps of them."""
ROWS_PER_BAND = 256
"""Patches that pass a linear map together."""
INNER_BYTES = 80
"""Of one value between the two maps of a block, as of a logit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PicturePlan:
    """Pictures of a run."""

    num_rows: int
    """Rows of encoded pictures that are kept; 0 in a run that takes none."""
    num_patches: int
    """Patches that one step encodes."""
    rows_bytes: int
    """Bytes of the rows."""
    encoder_bytes: int
    """Bytes that the encoder holds at most while it runs."""
    reason: str
    """Why that many rows."""


def picture_plan(wish: RunWish, config: ModelConfig) -> PicturePlan:
    """What a wish needs for pictures."""
    if not wish.images:
        reason = "text only: no image encoder"
        return PicturePlan(num_rows=0, num_patches=0, rows_bytes=0, encoder_bytes=0, reason=reason)
    value_bytes = 2 if wish.profile.bf16_stores else 4
    row_bytes, largest = config.hidden_size * value_bytes, config.vision.max_image_tokens
    count = KEPT
    if wish.memory_bytes is not None:
        count = max(1, min(KEPT, wish.memory_bytes // LARGEST_SHARE // (largest * row_bytes)))
    num_patches = largest * config.vision.downsample_ratio**2
    return PicturePlan(
        num_rows=count * largest,
        num_patches=num_patches,
        rows_bytes=count * largest * row_bytes,
        encoder_bytes=encoder_bytes(config.vision, num_patches, value_bytes),
        reason=f"{row_bytes:,} bytes each, enough for {count} of the largest pictures; a step encodes "
        f"{num_patches:,} patches",
    )


def encoder_bytes(config: VisionConfig, num_patches: int, value_bytes: int) -> int:
    """Bytes that the tower holds of one picture, weights left out."""
    vectors = num_patches * VECTORS * config.hidden_size * value_bytes
    logits = min(LOGITS_PER_BAND, num_patches**2) * LOGIT_BYTES
    inner = min(ROWS_PER_BAND, num_patches) * 2 * config.intermediate_size * INNER_BYTES
    return vectors + logits + inner
