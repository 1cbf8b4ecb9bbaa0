"""Pictures to rows: what a plan wants encoded is encoded, what it wants forgotten goes before.

Who needs which picture, and for how long, is decided in integers (`engine.image_shelf`).  spec: vision.md section 8.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from flash41.chat.image_pixels import bf16_values
from flash41.chat.images import Picture
from flash41.engine.image_rows import ImageRows
from flash41.engine.plan import PlannedEncoding, StepPlan
from flash41.model.batch import Probe
from flash41.model.image_encoder import ImageEncoder
from flash41.model.vision import Grid


def patch_values(picture: Picture) -> Tensor:
    """BF16 [N, 3pp]: the values of a picture's patches."""
    return torch.from_numpy(bf16_values()[picture.patches]).view(torch.bfloat16)


def encode(encoder: ImageEncoder, picture: Picture, probe: Probe | None = None) -> Tensor:
    """Rows [span, D] of a picture."""
    grid = Grid(height=picture.plan.grid_height, width=picture.plan.grid_width)
    return encoder(patch_values(picture), grid, probe)  # type: ignore[no-any-return]


class EncodedPictures:
    """The rows of the pictures that an engine keeps."""

    def __init__(self, encoder: ImageEncoder) -> None:
        self._encoder = encoder
        self._rows: dict[bytes, Tensor] = {}

    @property
    def num_rows(self) -> int:
        """Rows that are kept."""
        return sum(len(rows) for rows in self._rows.values())

    def rows_for(self, plan: StepPlan, picture_of: Callable[[PlannedEncoding], Picture]) -> ImageRows:
        """All rows that a plan needs, after forgetting and encoding what it says, one picture after the other."""
        for identity in plan.forgets:
            self._rows.pop(identity, None)  # a step that broke off may not have come to it
        for encoding in plan.encodings:
            self._rows[encoding.identity] = encode(self._encoder, picture_of(encoding))
        return self._rows
