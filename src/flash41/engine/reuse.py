"""What requests take from earlier ones, and leave to later ones.

    begin      pages of the longest cached prefix that ends at a boundary with an image; the image is restored
    cut        a span that would pass a boundary worth an image ends there instead
    save       the image of the boundary at which a span ends; numbered in the plan, copied behind the forward
    book       full pages are filed; those that others filed before take the place of this request's own

Boundaries worth an image, in tokens from the start of a request of which `known` ids are there:

    (prompt - 1) // page * page    the last one before a prompt's last token: what a retry can resume
    (known - 1) // page * page     the same of prompt and answer, for a request that gave way and is read again
    k * interval                   rungs of a long prompt
    a refused one                  whose pages were cached when this request began, but had no image
    every one an answer passes     the last of which a continued chat resumes; an answer's spans end everywhere

A hit gives the bits of a miss: rows do not depend on the forward that computes them, and an image is the state itself.
Pages that only the cache holds count as free; they go, least recently used first, before any request gives way.
Integers only.  spec: cache.md section 7.
"""

from dataclasses import dataclass

from flash41.cache.images import Image, ImageRole
from flash41.cache.matches import PrefixCounters, PrefixLease, PrefixMatch
from flash41.cache.page_keys import ImageSpan, PageKey, chain, chain_root
from flash41.cache.pages import PagePool
from flash41.cache.prefix import PrefixCache
from flash41.engine.plan import ImageMove, PlannedImage
from flash41.engine.replay import NO_REPLAY, Replay
from flash41.engine.request import Request
from flash41.engine.running import Running


@dataclass(frozen=True, slots=True, kw_only=True)
class ReuseLimits:
    """What an engine that reuses prefixes keeps."""

    layout_id: str
    """Name of what its pages mean; begins every chain of keys."""
    num_images: int
    """STATE images."""
    image_interval: int
    """Tokens between the rungs of a long prompt, whole pages."""


@dataclass(slots=True, kw_only=True)
class _Hold:
    """What a running request has of the cache."""

    lease: PrefixLease | None
    """What it began with, until its first step has run."""
    demanded: int | None
    """Boundary that was refused to it for want of an image."""
    num_filed: int
    """Its pages that are filed, from the first on."""
    saved: Image | None = None
    """Image that the planned step makes."""


class PrefixReuse:
    """The prefix cache of one scheduler; without limits nothing is kept and nothing found."""

    def __init__(self, limits: ReuseLimits | None, pool: PagePool, block_size: int, replay: Replay = NO_REPLAY) -> None:
        self._limits = limits
        self._replay = replay
        self.num_replayed_tokens = 0
        self._pool = pool
        self._block_size = block_size
        self._holds: dict[int, _Hold] = {}
        self.cache: PrefixCache | None = None
        if limits is not None:
            self.cache = PrefixCache(
                pool,
                block_size,
                max_pages=pool.num_pages,
                num_images=limits.num_images,
                image_interval=limits.image_interval,
                needs_images=not replay.prefix,
            )

    @property
    def counters(self) -> PrefixCounters:
        """Sums over all look-ups."""
        return PrefixCounters() if self.cache is None else self.cache.counters

    @property
    def num_kept_pages(self) -> int:
        """Pages that only the cache holds."""
        return 0 if self.cache is None else self.cache.num_evictable

    @property
    def num_images(self) -> int:
        """Images that could be restored."""
        return 0 if self.cache is None else self.cache.images.num_ready

    def begin(self, running: Running, num_promised: int) -> bool:
        """Begins a request with what is cached of it, if pages for all its ids are free besides the promised ones.

        Otherwise nothing has changed.
        """
        if self.cache is None:
            return running.pages_missing <= self._pool.num_free - num_promised
        known = running.num_known
        lease = self.cache.acquire(self._match(running))
        match = lease.match
        missing = -(-known // self._block_size) - len(match.page_ids)
        if missing > self._num_available(missing + num_promised) - num_promised:
            self.cache.abandon(lease)
            return False
        running.table.adopt(match.page_ids)
        running.num_computed = match.num_tokens
        if self._replay.prefix and match.num_tokens:
            running.planes_end = match.num_tokens
            running.num_computed = running.window_start = match.num_tokens - self._replay.window
            self.num_replayed_tokens += self._replay.window
        self._holds[running.request.request_id] = _Hold(
            lease=lease, demanded=match.demanded_boundary, num_filed=len(match.page_ids)
        )
        if lease.image is not None and match.num_tokens == self._prompt_boundary(running.request):
            self.cache.begin_image(match.keys[-1], ImageRole.PROMPT)  # there already: it takes on the role
        if running.request.num_cached_tokens is None:
            running.request.num_cached_tokens = running.num_computed
        return True

    def tail_start(self, request: Request) -> int:
        """First position of a request that layers behind the last owner compute; 0 where they compute all."""
        return max(0, len(request.prompt_ids) - self._replay.window) if self._replay.decoder else 0

    def _match(self, running: Running) -> PrefixMatch:
        """What is cached of a request and may be used.

        Images hold no windows of a tail, since tails differ; so with decoder replay a request resumes before its own.
        Replaying a prefix brings windows back, but is worth it only for prefixes longer than one.
        """
        assert self.cache is not None
        keys, known = self._keys(running.request), running.num_known
        replay = self._replay
        if replay.prefix:
            found = self.cache.match(keys, known)
            return found if found.num_tokens > replay.window else self.cache.match((), known)
        return self.cache.match(keys, known, at_most=self.tail_start(running.request) if replay.decoder else None)

    def make_room(self, count: int) -> int:
        """Free pages, after evicting cached ones until there are `count` if that many can be had."""
        if self.cache is not None and self._pool.num_free < count:
            self.cache.make_room(min(count, self._num_available(count)))
        return self._pool.num_free

    def cut(self, running: Running, length: int) -> int:
        """Rows of a span of at most `length` rows, fewer where it would pass a boundary worth an image."""
        start, end = running.num_computed, running.num_computed + length
        inside = [
            boundary for boundary in self._boundaries(running, start, end) if self._lacks_image(running, boundary)
        ]
        return min(inside, default=end) - start

    def draftable(self, num_computed: int, count: int) -> int:
        """Of `count` drafts those that an answer may have behind the row at position `num_computed`.

        No more than leave the last row before a boundary to a step of its own: at the end of drafts, of which some may
        be taken back, no image can be made.
        """
        if self._limits is None or self._replay.prefix:
            return count
        boundary = (num_computed // self._block_size + 1) * self._block_size
        return max(0, min(count, boundary - num_computed - 2))

    def restore_of(self, running: Running) -> ImageMove | None:
        """The image to restore before the request's first span."""
        hold = self._holds.get(running.request.request_id)
        if hold is None or hold.lease is None or hold.lease.image is None:
            return None
        return _move(running, hold.lease.image, running.num_computed)

    def save_at(self, running: Running, end: int) -> ImageMove | None:
        """The image to make of the boundary at which a span ends; None where none is worth it or has room."""
        if self.cache is None or self._replay.prefix or end % self._block_size:
            return None
        role, hold = self._role(running, end), self._holds[running.request.request_id]
        if role is None:
            return None
        hold.saved = self.cache.begin_image_ahead(self._keys(running.request)[: end // self._block_size], role)
        return None if hold.saved is None else _move(running, hold.saved, end)

    def book(self, running: Running) -> None:
        """A step of the request has run: its lease and its image are done, its full pages are filed."""
        if self.cache is None:
            return
        hold = self._holds[running.request.request_id]
        if hold.lease is not None:
            self.cache.commit(hold.lease)
            hold.lease = None
        num_full = running.num_computed // self._block_size
        if num_full > hold.num_filed:
            keys = self._keys(running.request)[:num_full]
            num_cached = self.cache.publish(keys, running.table.page_ids)
            for index in range(hold.num_filed, num_cached):
                filed = self.cache.page_of(keys[index])
                if filed is not None and filed != running.table.page_ids[index]:
                    running.table.exchange(index, filed)
            hold.num_filed = num_cached
        if hold.saved is not None:
            self.cache.finish_image(hold.saved)
            hold.saved = None

    def forget(self, running: Running) -> None:
        """The request leaves its slot: what it began and did not finish is undone; its pages are the table's."""
        hold = self._holds.pop(running.request.request_id, None)
        if hold is None or self.cache is None:
            return
        if hold.lease is not None:
            self.cache.abandon(hold.lease, adopted=True)
        if hold.saved is not None:
            self.cache.cancel_image(hold.saved)

    def check_integrity(self) -> list[int]:
        """Pages that the cache has a reference to; raises ProtocolError where it is not in order."""
        if self.cache is None:
            return []
        self.cache.check_integrity()
        return self.cache.held_page_ids

    def _num_available(self, wanted: int) -> int:
        """Free pages, and where these do not suffice also those that could be freed."""
        free = self._pool.num_free
        return free if free >= wanted or self.cache is None else free + self.cache.num_evictable

    def _keys(self, request: Request) -> tuple[PageKey, ...]:
        """Keys of all pages that the known ids fill; kept with the request, since prompts are long."""
        assert self._limits is not None
        if len(request.page_keys) < request.num_known // self._block_size:
            root = chain_root(self._limits.layout_id, request.cache_salt.hex())
            ids = (*request.prompt_ids, *request.output_ids)
            images = [_image_span(image.planned) for image in request.images]
            request.page_keys = chain(ids, self._block_size, root, images, known=request.page_keys)
        return request.page_keys

    def _last_boundary(self, num_tokens: int) -> int:
        """The last boundary behind which a token is left to compute."""
        return (num_tokens - 1) // self._block_size * self._block_size

    def _prompt_boundary(self, request: Request) -> int:
        """The boundary that the same prompt resumes when it comes again."""
        num_tokens = len(request.prompt_ids)
        if self._replay.decoder:
            return self.tail_start(request) // self._block_size * self._block_size
        return self._last_boundary(num_tokens)

    def _boundaries(self, running: Running, start: int, end: int) -> list[int]:
        """Boundaries worth an image strictly between two positions of a prompt."""
        if self._limits is None or self._replay.prefix or end - start < 2:
            return []
        interval, hold = self._limits.image_interval, self._holds[running.request.request_id]
        found = {
            self._prompt_boundary(running.request),
            self._last_boundary(running.num_known),
            (start // interval + 1) * interval,
            hold.demanded or 0,
        }
        return [boundary for boundary in found if start < boundary < end]

    def _lacks_image(self, running: Running, boundary: int) -> bool:
        assert self.cache is not None
        key = self._keys(running.request)[boundary // self._block_size - 1]
        return self.cache.images.find(key.hash) is None

    def _role(self, running: Running, boundary: int) -> ImageRole | None:
        """Why the image of a boundary is kept; None where it is not worth one."""
        assert self._limits is not None
        if boundary == self._prompt_boundary(running.request):
            return ImageRole.PROMPT
        if boundary == running.num_known // self._block_size * self._block_size:
            return ImageRole.DECODE
        hold = self._holds[running.request.request_id]
        is_rung = boundary % self._limits.image_interval == 0 or boundary == hold.demanded
        if is_rung or boundary == self._last_boundary(running.num_known):
            return ImageRole.RUNG
        return None


def _image_span(image: PlannedImage) -> ImageSpan:
    """A picture as page keys know it: placeholders look alike, so that its name decides."""
    return ImageSpan(identity=image.identity.hex(), start=image.start, length=image.num_rows)


def _move(running: Running, image: Image, position: int) -> ImageMove:
    return ImageMove(request_id=running.request.request_id, slot=running.slot, image=image.slot, position=position)
