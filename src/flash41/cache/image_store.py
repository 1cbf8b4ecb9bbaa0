"""The bytes of STATE images: an arena beside the pool, one image per slot.

    image    uint8 [layers, window, bytes of a row], the last `window` positions before a boundary, in their order:
             place i holds position boundary - window + i

In position order an image does not depend on the depth of a ring.  At a page boundary no group is open and n-grams come
from token ids, so windows are all there is to keep; the cursor is the boundary, which the arena remembers.  Which slot
holds what is counted by `cache.images`.  spec: cache.md sections 7 and 8.
"""

import torch
from torch import Tensor

from flash41.cache.paged import PagedStore
from flash41.cache.rows import zeroed
from flash41.errors import ProtocolError, complaint


class ImageStore:
    """`num_images` images of a store's slots."""

    def __init__(self, store: PagedStore, num_images: int) -> None:
        self._store = store
        self._windows = store.pool.window_bytes()
        _, layers, self._ring, row_bytes = self._windows.shape
        self._window = store.shape.window
        self.memory = zeroed((num_images, layers, self._window, row_bytes), torch.uint8)
        self._positions: list[int | None] = [None] * num_images

    def save(self, image: int, slot: int, position: int) -> None:
        """Copies the windows of a slot that holds exactly `position` positions; ProtocolError where it does not."""
        held = self._store.cursors[slot]
        if held != position:
            raise ProtocolError(complaint(f"image {image} of slot {slot}: state position", held, str(position)))
        rows, places = self._rows(position)
        self.memory[image][:, places] = self._windows[slot][:, rows]
        self._positions[image] = position

    def restore(self, image: int, slot: int, position: int, request_id: int) -> None:
        """Makes a slot hold the windows of an image; its cursor becomes `position`.

        ProtocolError, which names request, held and wanted position, where the image is of another boundary.
        """
        held = self._positions[image]
        if held != position:
            thing = f"request {request_id}: position of image {image}"
            remedy = "the request must be computed from its beginning"
            raise ProtocolError(complaint(thing, held, str(position), remedy))
        rows, places = self._rows(position)
        self._store.reset(slot)
        self._windows[slot][:, rows] = self.memory[image][:, places]
        self._store.cursors[slot] = position

    def _rows(self, position: int) -> tuple[Tensor, slice]:
        """Ring rows of the last positions before a boundary, and their places in an image."""
        count = min(position, self._window)
        return torch.arange(position - count, position) % self._ring, slice(self._window - count, self._window)
