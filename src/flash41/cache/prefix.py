"""Which pages and which state of earlier requests a new request may begin with.

A full page is filed under its key, an image under the key of the last page before its boundary.  A prompt is matched
page by page from the front, then walks back to the nearest boundary with a READY image:

    pages of the prompt   | 0 | 1 | 2 | 3 | 4 | 5 |      the last page is never reused: something must be forwarded
    cached                  x   x   x   x   -   x        pre-gate hit: 4 pages
    READY image             -   x   -   -                hit: 2 pages; without any image 0, PAGE is never resumed alone

An entry is more recently used than its children, so the least recently used entry is always the end of a chain, and
evicting it strands nothing.  Evicting a page drops the image filed under it.  Pages and images have budgets of their
own.  Knows nothing of bytes and of requests.  spec: cache.md section 7.
"""

from collections import OrderedDict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from flash41.cache.images import Image, ImageArena, ImageRole
from flash41.cache.matches import PrefixCounters, PrefixLease, PrefixMatch
from flash41.cache.page_keys import PageKey
from flash41.cache.pages import PagePool
from flash41.errors import ConfigError, ProtocolError, complaint


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    key: PageKey
    page_id: int


class PrefixCache:
    """Cached pages of a pool, at most `max_pages`, and `num_images` images.

    `image_interval` is the distance of the boundaries at which images are made; it serves the counterfactual only.
    Without `needs_images` pages alone are a match, for whoever brings the state back by computing it (prefix replay).
    """

    def __init__(
        self,
        pool: PagePool,
        block_size: int,
        *,
        max_pages: int,
        num_images: int,
        image_interval: int | None = None,
        needs_images: bool = True,
    ) -> None:
        self._needs_images = needs_images
        self.block_size = block_size
        self.max_pages = max_pages
        self.image_interval = image_interval or block_size
        if self.image_interval % block_size:
            raise ConfigError(
                complaint("state_image_interval", image_interval, f"a multiple of block_size {block_size}")
            )
        self.images = ImageArena(num_images)
        self.counters = PrefixCounters()
        self._pool = pool
        self._entries: OrderedDict[int, _Entry] = OrderedDict()
        self._ahead: dict[int, PageKey] = {}

    @property
    def num_pages(self) -> int:
        """Pages that are filed."""
        return len(self._entries)

    @property
    def num_evictable(self) -> int:
        """Pages that `make_room` could free: the cache alone holds them, and no page that hangs on them is in use."""
        blocked, count = set[int](), 0
        for page_hash, entry in self._entries.items():
            if page_hash in blocked or self._pool.references(entry.page_id) > 1:
                blocked.add(entry.key.parent)
            else:
                count += 1
        return count

    def match(self, keys: Sequence[PageKey], num_tokens: int, at_most: int | None = None) -> PrefixMatch:
        """The longest reusable prefix of a prompt of `num_tokens` tokens whose full pages have these keys.

        Of at most `at_most` tokens, where that is given.
        """
        reusable = min(len(keys), max(0, num_tokens - 1) // self.block_size)
        found = []
        for key in keys[:reusable]:
            entry = self._find(key)
            if entry is None:
                break
            found.append(entry)
        boundary = len(found) if at_most is None else min(len(found), at_most // self.block_size)
        while self._needs_images and boundary and not self.images.is_ready(found[boundary - 1].key.hash):
            boundary -= 1
        pre_gate, resumed = len(found) * self.block_size, boundary * self.block_size
        return PrefixMatch(
            keys=tuple(entry.key for entry in found[:boundary]),
            page_ids=tuple(entry.page_id for entry in found[:boundary]),
            num_tokens=resumed,
            pre_gate_tokens=pre_gate,
            counterfactual_tokens=max(resumed, pre_gate // self.image_interval * self.image_interval),
            wanted_tokens=num_tokens,
        )

    def acquire(self, match: PrefixMatch) -> PrefixLease:
        """Shares the pages of a match and pins its image; raises ProtocolError where either has gone since.

        Every lease ends with `commit` or `abandon`.
        """
        entries = [self._find(key) for key in match.keys]
        if [entry and entry.page_id for entry in entries] != list(match.page_ids):
            expected = "pages that are still cached (acquire before evicting)"
            raise ProtocolError(complaint("prefix pages", list(match.page_ids), expected))
        if not match.keys:
            return PrefixLease(match=match, image=None)
        if self._needs_images and not self.images.is_ready(match.keys[-1].hash):
            raise ProtocolError(
                f"prefix of {match.num_tokens} tokens has no STATE image, expected PAGE and STATE of one boundary"
            )
        self._pool.share(match.page_ids)
        self._touch(match.keys)
        return PrefixLease(match=match, image=self.images.pin(match.keys[-1].hash) if self._needs_images else None)

    def commit(self, lease: PrefixLease) -> None:
        """The restore has ridden a batch: unpins the image and counts the look-up.  The pages stay the request's."""
        if lease.image is not None:
            self.images.unpin(lease.image)
        self.counters.count(lease.match)

    def abandon(self, lease: PrefixLease, *, adopted: bool = False) -> None:
        """The request could not begin: unpins the image and gives the pages back, uncounted.

        With `adopted` the pages are a table's by now, which gives them back itself.
        """
        if lease.image is not None:
            self.images.unpin(lease.image)
        if not adopted:
            self._pool.give_back(lease.match.page_ids)

    def page_of(self, key: PageKey) -> int | None:
        """The page that is filed under a key."""
        entry = self._find(key)
        return None if entry is None else entry.page_id

    def publish(self, keys: Sequence[PageKey], page_ids: Sequence[int]) -> int:
        """Files a request's full pages, all from the first on, and returns how many of its keys are cached then.

        Only tokens whose rows exist may be published.  A page that is filed already keeps its number.  Stops where the
        budget is used up by pages that cannot go, and at a page that collides with another content.
        """
        assert len(keys) <= len(page_ids), f"{len(keys)} keys for {len(page_ids)} pages"
        own = {key.hash for key in keys}
        cached = 0
        for key, page_id in zip(keys, page_ids, strict=False):
            if self._find(key) is None and not self._file(key, page_id, own):
                break
            cached += 1
        self._touch(keys[:cached])
        return cached

    def make_room(self, num_pages: int) -> bool:
        """Evicts pages that only the cache holds until the pool has `num_pages` free ones.

        Returns False, and evicts nothing, where that cannot be reached.
        """
        missing = num_pages - self._pool.num_free
        return missing <= 0 or self._evict(missing, ())

    def begin_image(self, key: PageKey, role: ImageRole) -> Image | None:
        """A slot to copy the state at the boundary behind a page into, or None where no copy is to be made.

        None: the page is not cached, an image is there already (it takes on the role), or nothing may make room.
        """
        if self._find(key) is None:
            return None
        if self.images.find(key.hash) is not None:
            self.images.promote(key.hash, role)
            self.images.touch(key.hash)
            return None
        image = self.images.begin(key.hash, role, set(self._ancestors(key.hash)))
        self.counters.images_dropped += image is None
        return image

    def begin_image_ahead(self, keys: Sequence[PageKey], role: ImageRole) -> Image | None:
        """As `begin_image` for the last of a request's keys, whose pages a step computes that has not run yet.

        They must be published before `finish_image`, which drops the image where its page was not filed.
        """
        key = keys[-1]
        if self.max_pages == 0 or self._find(key) is not None or key.hash in self._entries:
            return self.begin_image(key, role)
        if self.images.find(key.hash) is not None:
            return None  # another request of the same step makes it
        image = self.images.begin(key.hash, role, {earlier.hash for earlier in keys[:-1]})
        self.counters.images_dropped += image is None
        if image is not None:
            self._ahead[image.slot] = key
        return image

    def finish_image(self, image: Image) -> None:
        """The copy has ridden a batch; the image may be matched from now on, unless its page went meanwhile."""
        ahead = self._ahead.pop(image.slot, None)
        if ahead is not None and self._find(ahead) is None:
            self.images.cancel(image)
            return
        self.images.finish(image, list(self._ancestors(image.page_hash)))
        self.counters.images_kept += self.images.find(image.page_hash) is image

    def cancel_image(self, image: Image) -> None:
        """The copy will not be made."""
        self._ahead.pop(image.slot, None)
        self.images.cancel(image)

    def check_integrity(self) -> None:
        """Raises ProtocolError unless chains, order, budgets, pages and images fit together."""
        self.images.check_integrity()
        entries = self._entries
        order = {page_hash: index for index, page_hash in enumerate(entries)}
        pages = [entry.page_id for entry in entries.values()]
        faults = []
        if len(entries) > self.max_pages or len(set(pages)) != len(pages):
            faults.append(complaint("cached pages", pages, f"at most {self.max_pages}, each once"))
        if any(not self._pool.references(page_id) for page_id in pages):
            faults.append(complaint("cached pages", pages, "pages that the cache holds"))
        for page_hash, entry in entries.items():
            if order.get(entry.key.parent, len(order)) <= order[page_hash]:
                faults.append(f"page {page_hash:016x}: more recently used than the page before it")
        strays = self.images.page_hashes - entries.keys() - {key.hash for key in self._ahead.values()}
        if strays:
            faults.append(complaint("images", sorted(strays), "images under cached pages"))
        if faults:
            raise ProtocolError("; ".join(faults))

    @property
    def held_page_ids(self) -> list[int]:
        """Pages the cache has a reference to."""
        return [entry.page_id for entry in self._entries.values()]

    def _find(self, key: PageKey) -> _Entry | None:
        entry = self._entries.get(key.hash)
        # Sixty-four bits may collide; the content decides.
        return entry if entry is not None and entry.key == key else None

    def _file(self, key: PageKey, page_id: int, own: Collection[int]) -> bool:
        if key.hash in self._entries or self.max_pages == 0:
            return False
        if len(self._entries) >= self.max_pages and not self._evict(1, own):
            return False
        self._pool.share((page_id,))
        self._entries[key.hash] = _Entry(key=key, page_id=page_id)
        return True

    def _touch(self, keys: Sequence[PageKey]) -> None:
        for key in reversed(keys):
            self._entries.move_to_end(key.hash)

    def _ancestors(self, page_hash: int) -> Iterator[int]:
        entry = self._entries.get(page_hash)
        while entry is not None and entry.key.parent in self._entries:
            yield entry.key.parent
            entry = self._entries[entry.key.parent]

    def _evict(self, count: int, kept: Collection[int]) -> bool:
        victims: list[_Entry] = []
        blocked = set(kept)
        # From the oldest on; children come before their parents, so one pass finds whole chain ends.
        for page_hash, entry in self._entries.items():
            if len(victims) == count:
                break
            if page_hash in blocked or self._pool.references(entry.page_id) > 1:
                blocked.add(entry.key.parent)
            else:
                victims.append(entry)
        if len(victims) < count:
            return False
        for entry in victims:
            self._remove(entry)
        return True

    def _remove(self, entry: _Entry) -> None:
        key = entry.key
        del self._entries[key.hash]
        self._pool.give_back((entry.page_id,))
        self.counters.pages_evicted += 1
        self.counters.images_orphaned += self.images.drop(key.hash)
