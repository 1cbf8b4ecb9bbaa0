"""Which rows of a step belong to images, and what they hold.

An image is a range of positions of its request.  A span may begin and end inside it, in any step, so both questions are
answered from positions alone:

    positions       ... 12 13 | 14 15 16 17 | 18 ...        image 13 .. 16, span 14 .. 17
    mask of the span            1  1  1  0                  rows 1 .. 3 of the image

Knows nothing of requests, pictures and caches.  spec: vision.md section 6.
"""

from collections.abc import Iterator, Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flash41.engine.plan import PlannedImage, PlannedSpan, StepPlan
from flash41.errors import ProtocolError, complaint

Mask = NDArray[np.bool_]

ImageRows = Mapping[bytes, Tensor]
"""Encoded rows [span, D] by the identity of their picture."""


def image_mask(span: PlannedSpan) -> Mask:
    """True on image positions, of the span's history and then of its rows."""
    first = span.start - len(span.history)
    mask = np.zeros(len(span.history) + len(span.ids), dtype=np.bool_)
    for image in span.images:
        mask[max(0, image.start - first) : max(0, image.end - first)] = True
    return mask


def step_mask(plan: StepPlan) -> Mask | None:
    """True on the image positions among the rows of a step; None if there are none."""
    if not any(span.images for span in plan.spans):
        return None
    mask = np.concatenate([image_mask(span)[len(span.history) :] for span in plan.spans])
    return mask if mask.any() else None


def image_rows(plan: StepPlan, rows: ImageRows) -> Tensor:
    """What stands on the image positions of all spans, in their order, [image positions, D].

    ProtocolError for an image without rows, or with another number of them than the plan says.
    """
    parts = []
    for image, first, last in _pieces(plan):
        held = rows.get(image.identity)
        if held is None or len(held) != image.num_rows:
            got = "none" if held is None else len(held)
            thing = f"rows of image {image.identity.hex()[:16]} at position {image.start}"
            raise ProtocolError(complaint(thing, got, f"{image.num_rows} encoded rows"))
        parts.append(held[first:last])
    return torch.cat(parts)


def _pieces(plan: StepPlan) -> Iterator[tuple[PlannedImage, int, int]]:
    """Every image that has rows in a span, with the half-open range of its rows there."""
    for span in plan.spans:
        end = span.start + len(span.ids)
        for image in span.images:
            first, last = max(image.start, span.start), min(image.end, end)
            if first < last:
                yield image, first - image.start, last - image.start
