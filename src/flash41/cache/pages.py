"""Pages as numbers: who holds which, and the table that maps a request's positions onto them.

A page is free or held by one or more holders; the pool counts references and knows no holder.  The sum that must hold:

    free pages + referenced pages = all pages        sum of counts = references handed out

A page with several holders is never written.  Whoever appends to a shared, half-filled page gets a page of its own and
the order to copy the old one first (copy on write).  Free pages are handed out in ascending order of their numbers,
whatever happened before, so that equal schedules use equal pages.  Knows nothing of bytes.  spec: cache.md section 1.
"""

import heapq
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from flash41.errors import CapacityError, ProtocolError, complaint


@dataclass(frozen=True, slots=True, kw_only=True)
class PageCopy:
    """An order to copy a whole page before anything is written in this step."""

    source: int
    """Page to read; other holders keep it."""
    target: int
    """Page to write; its only holder is the one who got this order."""


class PagePool:
    """Reference counts of `num_pages` pages."""

    def __init__(self, num_pages: int) -> None:
        self.num_pages = num_pages
        self._references = [0] * num_pages
        self._free = list(range(num_pages))
        self._num_handed_out = 0

    @property
    def num_free(self) -> int:
        """Pages without a holder."""
        return len(self._free)

    def references(self, page_id: int) -> int:
        """Holders of a page."""
        return self._references[page_id]

    def require(self, count: int) -> None:
        """Raises CapacityError unless `count` pages are free."""
        if count > len(self._free):
            remedy = f"of {self.num_pages}; a request must end or wait"
            raise CapacityError(complaint("free pages", len(self._free), f"at least {count}", remedy))

    def take(self, count: int = 1) -> list[int]:
        """`count` free pages, each with the caller as its only holder; raises CapacityError and takes none if short."""
        self.require(count)
        taken = [heapq.heappop(self._free) for _ in range(count)]
        for page_id in taken:
            self._references[page_id] = 1
        self._num_handed_out += count
        return taken

    def share(self, page_ids: Sequence[int]) -> None:
        """Adds a holder to pages that have one."""
        for page_id in page_ids:
            assert self._references[page_id] > 0, f"page {page_id} is shared, but nobody holds it"
            self._references[page_id] += 1
        self._num_handed_out += len(page_ids)

    def give_back(self, page_ids: Sequence[int]) -> None:
        """Takes a holder from pages; those without a holder become free."""
        for page_id in page_ids:
            assert self._references[page_id] > 0, f"page {page_id} is given back, but nobody holds it"
            self._references[page_id] -= 1
            if not self._references[page_id]:
                heapq.heappush(self._free, page_id)
        self._num_handed_out -= len(page_ids)

    def separate(self, page_id: int) -> PageCopy | None:
        """Makes a holder's page writable: None where it is the only one, else the copy to make.

        The holder's reference moves to the target.  Raises CapacityError where no page is free.
        """
        assert self._references[page_id] > 0, f"page {page_id} is written, but nobody holds it"
        if self._references[page_id] == 1:
            return None
        (target,) = self.take()
        self.give_back((page_id,))
        return PageCopy(source=page_id, target=target)

    def check_integrity(self, held: Iterable[int] | None = None) -> None:
        """Raises ProtocolError unless the sums of the module hold.

        `held` are all references that holders know of, one page number each; then every count must equal theirs.
        """
        referenced = sum(count > 0 for count in self._references)
        free, handed_out = set(self._free), sum(self._references)
        faults = []
        if len(free) + referenced != self.num_pages or len(free) != len(self._free):
            got = f"{len(self._free)} free + {referenced} referenced"
            faults.append(complaint("page pool", got, f"free + referenced == {self.num_pages}"))
        if any(self._references[page_id] for page_id in free):
            faults.append(complaint("free pages", sorted(free), "pages without a holder"))
        if handed_out != self._num_handed_out:
            faults.append(complaint("page references", handed_out, f"{self._num_handed_out} handed out"))
        if held is not None:
            counts = Counter(held)
            wrong = {p: (count, counts[p]) for p, count in enumerate(self._references) if count != counts[p]}
            if wrong:
                faults.append(complaint("page references (counted, held)", wrong, "equal counts"))
        if faults:
            raise ProtocolError("; ".join(faults))


class PageTable:
    """The pages of one request, in order of its positions."""

    def __init__(self, pool: PagePool, block_size: int) -> None:
        self.block_size = block_size
        self.num_tokens = 0
        self._pool = pool
        self._page_ids: list[int] = []

    @property
    def page_ids(self) -> tuple[int, ...]:
        """Pages so far; the last one may be partly filled."""
        return tuple(self._page_ids)

    @property
    def num_full_pages(self) -> int:
        """Pages whose every token exists."""
        return self.num_tokens // self.block_size

    def adopt(self, page_ids: Sequence[int]) -> None:
        """Begins an empty table with full pages whose references the caller already has and hands over."""
        assert not self._page_ids, f"a table with pages {self._page_ids} adopts {list(page_ids)}"
        self._page_ids = list(page_ids)
        self.num_tokens = len(page_ids) * self.block_size

    def exchange(self, index: int, page_id: int) -> None:
        """Puts a page that holds the same tokens in the place of one of this table's full pages, which is given back.

        Whoever computed what was there already keeps one copy of it then, and pins no other.
        """
        assert 0 <= index < self.num_full_pages, f"page {index} of {self.num_full_pages} full ones is exchanged"
        self._pool.share((page_id,))
        self._pool.give_back((self._page_ids[index],))
        self._page_ids[index] = page_id

    def pages_needed(self, count: int) -> int:
        """Free pages that `append(count)` takes, a copy of a shared last page included."""
        grown = -(-(self.num_tokens + count) // self.block_size) - len(self._page_ids)
        return grown + (1 if count and self._writes_shared_page() else 0)

    def append(self, count: int) -> list[PageCopy]:
        """Room for `count` more tokens, and the copies to make first.

        At most one copy: of the last page, where it is half filled and has other holders.  Raises CapacityError, and
        changes nothing, where pages run short.
        """
        self._pool.require(self.pages_needed(count))
        copies = []
        if count and self._writes_shared_page():
            copy = self._pool.separate(self._page_ids[-1])
            assert copy is not None, f"page {self._page_ids[-1]} was shared"
            self._page_ids[-1] = copy.target
            copies.append(copy)
        self._page_ids += self._pool.take(self.pages_needed(count))
        self.num_tokens += count
        return copies

    def trim(self, num_tokens: int) -> None:
        """Forgets the tokens behind the first `num_tokens` (rejected drafts) and gives pages without tokens back."""
        assert 0 <= num_tokens <= self.num_tokens, f"{self.num_tokens} tokens cannot be trimmed to {num_tokens}"
        kept = -(-num_tokens // self.block_size)
        self._pool.give_back(self._page_ids[kept:])
        del self._page_ids[kept:]
        self.num_tokens = num_tokens

    def fork(self) -> "PageTable":
        """A table with the same tokens that shares every page; the first of the two to append copies the last page."""
        self._pool.share(self._page_ids)
        other = PageTable(self._pool, self.block_size)
        other._page_ids, other.num_tokens = list(self._page_ids), self.num_tokens
        return other

    def release(self) -> None:
        """Gives every page back."""
        self.trim(0)

    def locate(self, position: int) -> tuple[int, int]:
        """Page of a position and the token's place in it."""
        assert 0 <= position < self.num_tokens, f"position {position} of {self.num_tokens}"
        index, offset = divmod(position, self.block_size)
        return self._page_ids[index], offset

    def _writes_shared_page(self) -> bool:
        return self.num_tokens % self.block_size > 0 and self._pool.references(self._page_ids[-1]) > 1
