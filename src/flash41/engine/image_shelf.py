"""Which encoded pictures are kept, for whom, and which a step encodes: integers and names only.

    a span reaches a picture   its rows are there, or are encoded in this step, or the span ends in front of it
    a request passes it        its lease ends; rows without a lease stay, least recently used first to go
    a step                     encodes at most `num_patches` patches, so that nobody waits long for others' pictures

A picture is encoded once for all requests that show it at the same time or soon after.  Whoever gives way and comes
back takes the rows that are left, or has them encoded again: they are the same, so nothing depends on it.
spec: vision.md section 8.
"""

from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass, field

from flash41.engine.plan import PlannedEncoding
from flash41.engine.request import Request
from flash41.errors import RequestError, complaint


@dataclass(frozen=True, slots=True, kw_only=True)
class ShelfLimits:
    """What is kept and encoded; both hold the largest picture."""

    num_rows: int
    """Rows of pictures at the same time."""
    num_patches: int
    """Patches that one step encodes."""


@dataclass(slots=True)
class _Entry:
    num_rows: int
    is_there: bool = False
    """Whether its rows exist; not before the step that encodes them has run."""
    holders: set[int] = field(default_factory=set)
    """Requests that still need it."""


NOTHING = ShelfLimits(num_rows=0, num_patches=0)
"""Of an engine that takes no pictures."""


class ImageShelf:
    """The encoded pictures of one engine; without limits of one that takes none."""

    def __init__(self, limits: ShelfLimits | None) -> None:
        self.limits = limits or NOTHING
        self._entries: OrderedDict[bytes, _Entry] = OrderedDict()
        self._encodings: list[PlannedEncoding] = []
        self._forgotten: list[bytes] = []
        self._num_patches_left = self.limits.num_patches
        self.num_encoded = 0
        self.num_found = 0

    @property
    def num_rows(self) -> int:
        """Rows that are kept, those of pictures on their way included."""
        return sum(entry.num_rows for entry in self._entries.values())

    def check(self, request: Request) -> None:
        """Raises RequestError for a picture that could never be encoded."""
        if request.images and self.limits is NOTHING:
            expected = "text, as this engine was opened without its image encoder"
            raise RequestError(complaint("prompt", f"{len(request.images)} images", expected))
        for image in request.images:
            got = (image.planned.num_rows, image.picture.plan.num_patches)
            if got[0] > self.limits.num_rows or got[1] > self.limits.num_patches:
                expected = f"at most {self.limits.num_rows} rows and {self.limits.num_patches} patches"
                raise RequestError(complaint("image", f"{got[0]} rows and {got[1]} patches", expected))

    def reach(self, request: Request, start: int, length: int) -> int:
        """Rows of a span of at most `length` rows, fewer where it would reach a picture that this step cannot have.

        The pictures it does reach are the request's until `pass_by` or `leave`.
        """
        if length <= 0:
            return 0  # no row, no lease: the step may not even hold this request
        for index, image in enumerate(request.images):
            planned = image.planned
            if planned.end <= start or planned.start >= start + length:
                continue
            if not self._lease(request, index):
                return max(0, planned.start - start)
        return length

    def pass_by(self, request: Request, num_computed: int) -> None:
        """Ends the request's leases of pictures whose every position it has computed.

        A picture that it shows again later is leased again then: who holds one and waits for another may wait forever.
        """
        inside = {one.planned.identity for one in request.images if one.planned.start < num_computed < one.planned.end}
        for image in request.images:
            if image.planned.end <= num_computed and image.planned.identity not in inside:
                self._release(image.planned.identity, request.request_id)

    def leave(self, request: Request) -> None:
        """Ends all leases of a request."""
        for image in request.images:
            self._release(image.planned.identity, request.request_id)

    def take(self) -> tuple[tuple[PlannedEncoding, ...], tuple[bytes, ...]]:
        """What the planned step encodes, and whose rows go before; the next step begins with nothing planned."""
        taken = tuple(self._encodings), tuple(self._forgotten)
        self._encodings, self._forgotten = [], []
        self._num_patches_left = self.limits.num_patches
        return taken

    def commit(self, encodings: tuple[PlannedEncoding, ...]) -> None:
        """A step has run: its pictures are there, unless nobody needs them any more."""
        for encoding in encodings:
            entry = self._entries.get(encoding.identity)
            if entry is not None:
                entry.is_there = True
                self.num_encoded += 1

    def check_integrity(self, request_ids: Collection[int]) -> None:
        """Rows within the limit, leases of these requests only, and no picture that is neither there nor awaited."""
        assert self.num_rows <= self.limits.num_rows, (self.num_rows, self.limits.num_rows)
        holders = {holder for entry in self._entries.values() for holder in entry.holders}
        assert holders <= set(request_ids), (holders, request_ids)
        lost = [identity.hex() for identity, entry in self._entries.items() if not (entry.holders or entry.is_there)]
        assert not lost, lost

    @property
    def num_held(self) -> int:
        """Pictures that a request still needs."""
        return sum(bool(entry.holders) for entry in self._entries.values())

    def _lease(self, request: Request, index: int) -> bool:
        image = request.images[index]
        identity, num_patches = image.planned.identity, image.picture.plan.num_patches
        entry = self._entries.get(identity)
        if entry is None:
            if num_patches > self._num_patches_left or not self._make_room(image.planned.num_rows):
                return False
            self._num_patches_left -= num_patches
            entry = self._entries[identity] = _Entry(image.planned.num_rows)
            self._encodings.append(PlannedEncoding(identity=identity, request_id=request.request_id, image_index=index))
        elif request.request_id not in entry.holders:
            self.num_found += 1
        entry.holders.add(request.request_id)
        self._entries.move_to_end(identity)
        return True

    def _make_room(self, num_rows: int) -> bool:
        """Drops pictures that nobody needs, the least recently used first, if that is enough."""
        missing = self.num_rows + num_rows - self.limits.num_rows
        victims = []
        for identity, entry in self._entries.items():
            if missing <= 0:
                break
            if not entry.holders:
                victims.append(identity)
                missing -= entry.num_rows
        if missing > 0:
            return False
        for identity in victims:
            self._drop(identity)
        return True

    def _release(self, identity: bytes, request_id: int) -> None:
        entry = self._entries.get(identity)
        if entry is None or request_id not in entry.holders:
            return
        entry.holders.discard(request_id)
        self._entries.move_to_end(identity)
        if not entry.holders and not entry.is_there:
            self._drop(identity)  # the step that should have made it broke off, or still runs for nobody

    def _drop(self, identity: bytes) -> None:
        del self._entries[identity]
        self._forgotten.append(identity)
