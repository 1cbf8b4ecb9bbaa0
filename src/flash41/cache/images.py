"""STATE images as numbers: which slot of the image arena holds the state at which page boundary.

    begin            finish             pin .. unpin
    free  ->  COPYING  ->  READY  ------------------->  READY
                 |           |  evicted or orphaned
                 |           v
                 `------>  EVICTING  ->  free, once its copy has ended and nobody has it pinned

A READY image may be restored; a restore pins it until its copy out has ridden a batch.  Every slot is in exactly one
place: free slots + filed images + leaving images = all slots.

Which image makes room: rungs (taken on the way, because they cost nothing then) before images that end a prompt or a
decoded text, the least recently used first.  A rung displaces only rungs.  The text a request decodes never displaces
the end of its own prompt, which is what a retry or an edited continuation can still match; and once a later boundary of
the same text is kept, the earlier one is only a rung.  spec: cache.md section 7, pitfalls 91 to 93.
"""

import enum
import heapq
from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass

from flash41.errors import ProtocolError, complaint


class ImageState(enum.Enum):
    """Where an image is in its life."""

    COPYING = "copying"
    """Its bytes are being written; not to be read yet."""
    READY = "ready"
    """Complete and immutable."""
    EVICTING = "evicting"
    """Found by nobody any more; its slot is still being written or read."""


class ImageRole(enum.Enum):
    """Why an image is kept."""

    RUNG = "rung"
    """A boundary on the way."""
    DECODE = "decode"
    """The last boundary that decoding has passed."""
    PROMPT = "prompt"
    """The last boundary of a prompt."""


@dataclass(slots=True, kw_only=True)
class Image:
    """One image; whoever began or pinned it keeps this record."""

    slot: int
    """Slot of the arena."""
    page_hash: int
    """Key of the last page before the boundary."""
    role: ImageRole
    """Why it is kept."""
    state: ImageState = ImageState.COPYING
    """Where it is in its life."""
    num_pins: int = 0
    """Restores that read it."""


class ImageArena:
    """Slots of `num_slots` images."""

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self.num_evicted = 0
        self._free = list(range(num_slots))
        self._filed: OrderedDict[int, Image] = OrderedDict()
        self._leaving: dict[int, Image] = {}

    @property
    def num_free(self) -> int:
        """Slots that hold nothing."""
        return len(self._free)

    @property
    def num_available(self) -> int:
        """Slots that hold nothing or a READY image without a pin: what new images may come to occupy."""
        return len(self._free) + sum(_is_idle(image) for image in self._filed.values())

    @property
    def num_ready(self) -> int:
        """Images that may be restored."""
        return sum(image.state is ImageState.READY for image in self._filed.values())

    @property
    def page_hashes(self) -> set[int]:
        """Keys under which images are filed."""
        return set(self._filed)

    def find(self, page_hash: int) -> Image | None:
        """The image filed under a page, COPYING or READY."""
        return self._filed.get(page_hash)

    def is_ready(self, page_hash: int) -> bool:
        """Whether an image filed under a page may be restored."""
        image = self._filed.get(page_hash)
        return image is not None and image.state is ImageState.READY

    def begin(self, page_hash: int, role: ImageRole, ancestors: Collection[int] = ()) -> Image | None:
        """A slot for the image at a boundary, or None where nothing may make room for it; then nothing is evicted.

        `ancestors` are the keys of the earlier pages of the same request.
        """
        assert page_hash not in self._filed, f"page {page_hash:016x} has an image already"
        if not self._free:
            victim = self._victim(role, ancestors)
            if victim is None:
                return None
            self._leave(victim)
            self.num_evicted += 1
        image = Image(slot=heapq.heappop(self._free), page_hash=page_hash, role=role)
        self._filed[page_hash] = image
        return image

    def finish(self, image: Image, ancestors: Collection[int] = ()) -> None:
        """The copy has ridden a batch: the image may be restored, unless its page went meanwhile."""
        if image.state is ImageState.EVICTING and not image.num_pins:
            self._free_slot(image)
            return
        assert image.state is ImageState.COPYING, f"an image is finished twice: {image}"
        image.state = ImageState.READY
        if image.role is ImageRole.DECODE:
            for earlier in map(self._filed.get, ancestors):
                if earlier is not None and earlier.role is ImageRole.DECODE:
                    earlier.role = ImageRole.RUNG

    def cancel(self, image: Image) -> None:
        """The copy will not be made: the slot becomes free."""
        if image.state is ImageState.COPYING:
            self._leave(image)
        assert image.slot in self._leaving, f"a finished image is cancelled: {image}"
        self._free_slot(image)

    def touch(self, page_hash: int) -> None:
        """Makes the image filed under a page the most recently used one."""
        if page_hash in self._filed:
            self._filed.move_to_end(page_hash)

    def promote(self, page_hash: int, role: ImageRole) -> None:
        """Gives the image filed under a page a role it also has; PROMPT outranks DECODE, DECODE outranks RUNG."""
        image = self._filed[page_hash]
        image.role = max(image.role, role, key=list(ImageRole).index)

    def pin(self, page_hash: int) -> Image:
        """Keeps a READY image from being overwritten while a restore reads it."""
        image = self._filed[page_hash]
        assert image.state is ImageState.READY, f"a restore of an image that is not ready: {image}"
        image.num_pins += 1
        self._filed.move_to_end(page_hash)
        return image

    def unpin(self, image: Image) -> None:
        """The restore has ridden a batch."""
        assert image.num_pins > 0, f"an image without pins is unpinned: {image}"
        image.num_pins -= 1
        if image.state is ImageState.EVICTING and not image.num_pins:
            self._free_slot(image)

    def drop(self, page_hash: int) -> bool:
        """The page is gone, so nobody can ask for the image under it any more; whether there was one."""
        image = self._filed.get(page_hash)
        if image is None:
            return False
        self._leave(image)
        return True

    def check_integrity(self) -> None:
        """Raises ProtocolError unless every slot is in one place and every image in a state that fits its place."""
        slots = [*self._free, *(image.slot for image in self._filed.values()), *self._leaving]
        if sorted(slots) != list(range(self.num_slots)):
            got = f"{len(self._free)} free + {len(self._filed)} filed + {len(self._leaving)} leaving"
            raise ProtocolError(complaint("image slots", got, f"free + filed + leaving == {self.num_slots}"))
        wrong = [
            *(image for image in self._filed.values() if image.state is ImageState.EVICTING),
            *(image for image in self._leaving.values() if image.state is not ImageState.EVICTING),
            *(image for image in self._filed.values() if image.num_pins and image.state is not ImageState.READY),
        ]
        if wrong:
            raise ProtocolError(
                complaint("image states", wrong, "filed images COPYING or READY, only READY ones pinned")
            )

    def _victim(self, role: ImageRole, ancestors: Collection[int]) -> Image | None:
        idle = [image for image in self._filed.values() if _is_idle(image)]
        rungs = [image for image in idle if image.role is ImageRole.RUNG]
        if rungs or role is ImageRole.RUNG:
            return rungs[0] if rungs else None
        own = () if role is ImageRole.PROMPT else ancestors
        ends = [image for image in idle if image.role is not ImageRole.PROMPT or image.page_hash not in own]
        return ends[0] if ends else None

    def _leave(self, image: Image) -> None:
        is_copying = image.state is ImageState.COPYING
        del self._filed[image.page_hash]
        image.state = ImageState.EVICTING
        self._leaving[image.slot] = image
        if not is_copying and not image.num_pins:
            self._free_slot(image)

    def _free_slot(self, image: Image) -> None:
        del self._leaving[image.slot]
        heapq.heappush(self._free, image.slot)


def _is_idle(image: Image) -> bool:
    return image.state is ImageState.READY and not image.num_pins
