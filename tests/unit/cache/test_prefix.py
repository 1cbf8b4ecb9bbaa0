"""The prefix cache: what may be resumed, what goes first, and that nobody ever reads another text's rows."""

import dataclasses
from collections.abc import Sequence

import pytest
from hypothesis import assume, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from flash41.cache.images import Image, ImageRole
from flash41.cache.matches import PrefixLease, PrefixMatch
from flash41.cache.page_keys import PageKey, chain, chain_root
from flash41.cache.pages import PagePool, PageTable
from flash41.cache.prefix import PrefixCache
from flash41.errors import ConfigError, ProtocolError

BLOCK = 2
ROOT = chain_root("layout")


def keys_of(ids: Sequence[int], root: str = ROOT) -> tuple[PageKey, ...]:
    return chain(ids, BLOCK, root)


class Bench:
    """A cache over a pool, and requests that run to their end at once."""

    def __init__(self, num_pages: int = 16, max_pages: int = 16, num_images: int = 4, interval: int = BLOCK) -> None:
        self.pool = PagePool(num_pages)
        self.cache = PrefixCache(self.pool, BLOCK, max_pages=max_pages, num_images=num_images, image_interval=interval)

    def publish(self, ids: Sequence[int], root: str = ROOT) -> tuple[PageKey, ...]:
        keys = keys_of(ids, root)
        pages = self.pool.take(len(keys))
        self.cache.publish(keys, pages)
        self.pool.give_back(pages)
        return keys

    def keep(self, key: PageKey, role: ImageRole = ImageRole.PROMPT) -> Image:
        image = self.cache.begin_image(key, role)
        assert image is not None
        self.cache.finish_image(image)
        return image

    def match(self, ids: Sequence[int], root: str = ROOT) -> PrefixMatch:
        return self.cache.match(keys_of(ids, root), len(ids))

    def check(self, *held: int) -> None:
        self.cache.check_integrity()
        self.pool.check_integrity([*self.cache.held_page_ids, *held])


def test_a_second_request_resumes_where_an_image_is_kept() -> None:
    bench = Bench()
    keys = bench.publish([1, 2, 3, 4, 5, 6])
    bench.keep(keys[2])
    found = bench.match([1, 2, 3, 4, 5, 6, 7])
    assert (found.num_tokens, found.page_ids, found.keys) == (6, (0, 1, 2), keys)
    assert found.demanded_boundary is None
    bench.check()


def test_pages_without_an_image_are_never_resumed() -> None:
    # Pitfalls 76 to 79: the window lives outside the pages.
    bench = Bench()
    bench.publish([1, 2, 3, 4, 5, 6])
    found = bench.match([1, 2, 3, 4, 5, 6, 7])
    assert (found.num_tokens, found.page_ids) == (0, ())
    assert (found.pre_gate_tokens, found.demanded_boundary) == (6, 6)


def test_a_match_walks_back_to_the_nearest_image_and_no_further() -> None:
    # Pitfall 77: a hit is not trimmed by a window of pages.
    bench = Bench()
    keys = bench.publish([1, 2, 3, 4, 5, 6])
    bench.keep(keys[0])
    bench.keep(keys[1])
    found = bench.match([1, 2, 3, 4, 5, 6, 7])
    assert (found.num_tokens, found.pre_gate_tokens, found.demanded_boundary) == (4, 6, 6)


def test_an_image_behind_the_matched_pages_is_of_no_use() -> None:
    bench = Bench()
    keys = bench.publish([1, 2, 3, 4])
    bench.keep(keys[1])
    assert bench.match([1, 2, 9, 9, 9]).num_tokens == 0


@pytest.mark.parametrize(("length", "resumed"), [(0, 0), (1, 0), (2, 0), (3, 2), (4, 2), (5, 4), (6, 4), (7, 6)])
def test_only_the_page_that_must_be_forwarded_is_not_reused(length: int, resumed: int) -> None:
    # Pitfalls 88 and 98: neither the last full page of a longer prompt nor more than one page is dropped.
    bench = Bench()
    for key in bench.publish([1, 2, 3, 4, 5, 6]):
        bench.keep(key)
    assert bench.match([1, 2, 3, 4, 5, 6, 7][:length]).num_tokens == resumed


def test_granularity_is_the_page_whatever_the_image_interval() -> None:
    # Pitfall 97: neither state groups nor the cadence of images round a hit.
    bench = Bench(interval=3 * BLOCK)
    keys = bench.publish([1, 2, 3, 4])
    bench.keep(keys[0])
    assert bench.match([1, 2, 3]).num_tokens == 2


def test_an_image_is_matched_only_when_its_copy_has_ended() -> None:
    bench = Bench()
    keys = bench.publish([1, 2])
    image = bench.cache.begin_image(keys[0], ImageRole.PROMPT)
    assert image is not None
    assert bench.match([1, 2, 3]).num_tokens == 0
    bench.cache.finish_image(image)
    assert bench.match([1, 2, 3]).num_tokens == 2
    assert bench.cache.counters.images_kept == 1


def test_a_colliding_hash_is_neither_matched_nor_replaced() -> None:
    bench = Bench()
    (key,) = bench.publish([1, 2])
    bench.keep(key)
    other = dataclasses.replace(key, content=dataclasses.replace(key.content, token_ids=(8, 9)))
    assert bench.cache.match([other], 3).pre_gate_tokens == 0
    page = bench.pool.take()
    assert bench.cache.publish([other], page) == 0
    assert bench.cache.begin_image(other, ImageRole.PROMPT) is None
    assert bench.match([1, 2, 3]).num_tokens == 2
    bench.check(*page)


def test_layouts_and_salts_share_nothing() -> None:
    bench = Bench()
    other = chain_root("layout", "key of another user")
    bench.keep(bench.publish([1, 2])[0])
    assert bench.match([1, 2, 3], other).pre_gate_tokens == 0
    bench.keep(bench.publish([1, 2], other)[0])
    assert bench.match([1, 2, 3]).page_ids != bench.match([1, 2, 3], other).page_ids
    bench.check()


def test_a_lease_holds_pages_and_image_until_the_restore_has_ended() -> None:
    bench = Bench(num_images=1)
    keys = bench.publish([1, 2, 3, 4])
    bench.keep(keys[1])
    lease = bench.cache.acquire(bench.match([1, 2, 3, 4, 5]))
    assert lease.image is not None
    assert lease.image.num_pins == 1
    assert not bench.cache.make_room(15)
    assert bench.cache.begin_image(keys[0], ImageRole.PROMPT) is None
    bench.check(*lease.match.page_ids)
    bench.cache.commit(lease)
    table = PageTable(bench.pool, BLOCK)
    table.adopt(lease.match.page_ids)
    assert table.append(1) == []
    bench.check(*table.page_ids)
    table.release()
    assert bench.cache.make_room(16)
    bench.check()


def test_an_abandoned_lease_leaves_no_trace() -> None:
    bench = Bench()
    bench.keep(bench.publish([1, 2])[0])
    before = dataclasses.asdict(bench.cache.counters)
    lease = bench.cache.acquire(bench.match([1, 2, 3]))
    bench.cache.abandon(lease)
    bench.check()
    assert dataclasses.asdict(bench.cache.counters) == before
    assert bench.cache.make_room(16)


def test_a_lease_of_nothing_is_legal() -> None:
    bench = Bench()
    for end in (bench.cache.commit, bench.cache.abandon):
        lease = bench.cache.acquire(bench.match([1, 2, 3]))
        assert lease.image is None
        end(lease)
    assert bench.cache.counters.lookups == 1
    bench.check()


def test_a_match_that_is_overtaken_by_eviction_is_refused() -> None:
    bench = Bench()
    keys = bench.publish([1, 2])
    bench.keep(keys[0])
    found = bench.match([1, 2, 3])
    assert bench.cache.make_room(16)
    with pytest.raises(ProtocolError, match=r"^prefix pages: got \[0\], expected pages that are still cached"):
        bench.cache.acquire(found)
    bench.publish([1, 2])
    message = "^prefix of 2 tokens has no STATE image, expected PAGE and STATE of one boundary$"
    with pytest.raises(ProtocolError, match=message):
        bench.cache.acquire(found)


def test_evicting_a_page_drops_the_image_filed_under_it() -> None:
    bench = Bench(num_images=1)
    bench.keep(bench.publish([1, 2])[0])
    assert bench.cache.make_room(16)
    assert (bench.cache.counters.images_orphaned, bench.cache.counters.pages_evicted) == (1, 1)
    assert bench.cache.images.num_free == 1
    bench.check()


def test_an_image_orphaned_while_it_is_copied_is_never_matched() -> None:
    bench = Bench(num_images=1)
    keys = bench.publish([1, 2])
    image = bench.cache.begin_image(keys[0], ImageRole.PROMPT)
    assert image is not None
    assert bench.cache.make_room(16)
    bench.publish([1, 2])
    bench.cache.finish_image(image)
    assert bench.match([1, 2, 3]).num_tokens == 0
    assert bench.cache.counters.images_kept == 0
    bench.check()


def test_ends_of_chains_go_first_and_the_least_recently_used_of_them() -> None:
    bench = Bench()
    bench.publish([1, 2, 3, 4, 5, 6])
    bench.publish([1, 2, 9, 9])
    assert bench.cache.make_room(14)
    assert bench.match([1, 2, 3, 4, 5, 6, 0]).pre_gate_tokens == 2
    assert bench.match([1, 2, 9, 9, 0]).pre_gate_tokens == 4
    bench.check()


def test_a_resumed_prefix_is_used_and_outlives_others() -> None:
    bench = Bench()
    bench.keep(bench.publish([1, 2])[0])
    bench.publish([3, 4])
    bench.cache.abandon(bench.cache.acquire(bench.match([1, 2, 0])))
    assert bench.cache.make_room(15)
    assert bench.match([1, 2, 0]).pre_gate_tokens == 2
    assert bench.match([3, 4, 0]).pre_gate_tokens == 0


def test_room_is_made_completely_or_not_at_all() -> None:
    bench = Bench(num_pages=4)
    bench.publish([1, 2, 3, 4])
    used = bench.pool.take(2)
    assert not bench.cache.make_room(3)
    assert bench.cache.num_pages == 2
    assert bench.cache.make_room(2)
    assert bench.cache.num_pages == 0
    bench.check(*used)


def test_pages_of_running_requests_are_not_evicted() -> None:
    bench = Bench(num_pages=4)
    keys = keys_of([1, 2, 3, 4])
    pages = bench.pool.take(2)
    bench.cache.publish(keys, pages)
    bench.pool.give_back(pages[:1])
    # The first page is the cache's alone, but the request's second page hangs on it.
    assert not bench.cache.make_room(3)
    assert bench.cache.num_pages == 2
    bench.check(pages[1])


def test_the_page_budget_evicts_others_and_never_the_chain_being_filed() -> None:
    bench = Bench(max_pages=3)
    bench.publish([7, 7])
    keys = bench.publish([1, 2, 3, 4, 5, 6, 7, 8])
    assert bench.cache.num_pages == 3
    assert bench.match([1, 2, 3, 4, 5, 6, 7, 8, 9]).pre_gate_tokens == 6
    assert bench.match([7, 7, 7]).pre_gate_tokens == 0
    pages = bench.pool.take(4)
    assert bench.cache.publish(keys, pages) == 3
    bench.check(*pages)


def test_a_cache_without_pages_files_nothing() -> None:
    bench = Bench(max_pages=0)
    keys = bench.publish([1, 2])
    assert bench.cache.begin_image(keys[0], ImageRole.PROMPT) is None
    assert bench.cache.num_pages == 0
    bench.check()


def test_a_page_that_two_requests_computed_is_filed_once() -> None:
    bench = Bench()
    keys = bench.publish([1, 2, 3, 4])
    pages = bench.pool.take(2)
    assert bench.cache.publish(keys, pages) == 2
    assert bench.match([1, 2, 3, 4, 5]).pre_gate_tokens == 4
    assert set(bench.cache.held_page_ids).isdisjoint(pages)
    bench.check(*pages)


def test_a_boundary_is_imaged_once_and_takes_on_further_roles() -> None:
    bench = Bench()
    keys = bench.publish([1, 2])
    image = bench.keep(keys[0], ImageRole.RUNG)
    assert bench.cache.begin_image(keys[0], ImageRole.PROMPT) is None
    assert image.role is ImageRole.PROMPT
    assert bench.cache.counters.images_dropped == 0


def test_a_retry_resumes_from_the_end_of_its_prompt_after_a_long_answer() -> None:
    # Pitfalls 91 to 93: one image; the answer passes boundaries behind the prompt.
    bench = Bench(num_images=1)
    prompt, answer = [1, 2, 3, 4], [5, 6, 7, 8]
    keys = bench.publish(prompt + answer)
    bench.keep(keys[1], ImageRole.PROMPT)
    for key in keys[2:]:
        assert bench.cache.begin_image(key, ImageRole.DECODE) is None
    assert bench.cache.counters.images_dropped == 2
    assert bench.match([*prompt, 9]).num_tokens == 4


def test_a_continued_dialogue_resumes_behind_the_answer() -> None:
    # Pitfalls 90 and 96: with room for two, both the prompt's end and the answer's last boundary are kept.
    bench = Bench(num_images=2)
    keys = bench.publish([1, 2, 3, 4, 5, 6, 7, 8])
    bench.keep(keys[0], ImageRole.PROMPT)
    for key in keys[1:]:
        bench.keep(key, ImageRole.DECODE)
    assert bench.match([1, 2, 3, 4, 5, 6, 7, 8, 9]).num_tokens == 8
    assert bench.match([1, 2, 9]).num_tokens == 2


def test_a_cancelled_image_frees_its_slot() -> None:
    bench = Bench(num_images=1)
    keys = bench.publish([1, 2])
    image = bench.cache.begin_image(keys[0], ImageRole.PROMPT)
    assert image is not None
    bench.cache.cancel_image(image)
    bench.keep(keys[0])
    bench.check()


def test_counters_tell_what_was_lost_and_why() -> None:
    bench = Bench(interval=2 * BLOCK)
    keys = bench.publish([1, 2, 3, 4, 5, 6])
    bench.keep(keys[0])
    # Six tokens lie in pages, an image at 4 would be made, one at 2 exists: two are lost, two were never to be had.
    bench.cache.commit(bench.cache.acquire(bench.match([1, 2, 3, 4, 5, 6, 7, 8])))
    bench.cache.commit(bench.cache.acquire(bench.match([9, 9, 9])))
    counters = bench.cache.counters
    assert (counters.lookups, counters.wanted_tokens) == (2, 11)
    assert (counters.pre_gate_tokens, counters.counterfactual_tokens, counters.cached_tokens) == (6, 4, 2)
    assert (counters.lost_tokens, counters.unrecoverable_tokens) == (2, 2)


def test_an_image_off_the_interval_counts_as_resumed_and_not_as_lost() -> None:
    bench = Bench(interval=2 * BLOCK)
    keys = bench.publish([1, 2, 3, 4, 5, 6])
    bench.keep(keys[2])
    found = bench.match([1, 2, 3, 4, 5, 6, 7])
    assert (found.num_tokens, found.counterfactual_tokens, found.pre_gate_tokens) == (6, 6, 6)


def test_an_interval_off_the_page_grid_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^state_image_interval: got 3, expected a multiple of block_size 2$"):
        Bench(interval=3)


def test_broken_chains_are_reported() -> None:
    bench = Bench()
    keys = bench.publish([1, 2, 3, 4])
    bench.cache._entries.move_to_end(keys[1].hash)
    with pytest.raises(ProtocolError, match="more recently used than the page before it"):
        bench.cache.check_integrity()
    bench.cache._entries.move_to_end(keys[0].hash)
    bench.cache.check_integrity()


def test_pages_that_are_not_the_caches_are_reported() -> None:
    bench = Bench()
    keys = bench.publish([1, 2])
    bench.pool.give_back([0])
    with pytest.raises(ProtocolError, match="expected pages that the cache holds"):
        bench.cache.check_integrity()
    del bench.cache._entries[keys[0].hash]
    bench.cache.images.begin(keys[0].hash, ImageRole.RUNG)
    with pytest.raises(ProtocolError, match="expected images under cached pages"):
        bench.cache.check_integrity()


def begun_ahead(bench: Bench, keys: Sequence[PageKey], role: ImageRole = ImageRole.PROMPT) -> Image:
    image = bench.cache.begin_image_ahead(keys, role)
    assert image is not None
    return image


def test_an_image_may_be_numbered_before_its_page_is_filed() -> None:
    bench = Bench()
    image = begun_ahead(bench, keys_of([1, 2, 3, 4]))
    bench.check()
    bench.publish([1, 2, 3, 4])
    assert bench.match([1, 2, 3, 4, 5]).num_tokens == 0
    bench.cache.finish_image(image)
    assert bench.match([1, 2, 3, 4, 5]).num_tokens == 4
    bench.check()


def test_an_image_whose_page_is_not_filed_in_the_end_is_dropped() -> None:
    bench = Bench(max_pages=1, num_images=2)
    keys = keys_of([1, 2, 3, 4])
    image = begun_ahead(bench, keys)
    bench.publish([1, 2, 3, 4])  # the budget holds the first page only
    bench.cache.finish_image(image)
    assert bench.cache.images.num_free == 2
    assert bench.cache.counters.images_kept == 0
    bench.check()


def test_an_image_numbered_ahead_can_be_cancelled() -> None:
    bench = Bench(num_images=1)
    keys = keys_of([1, 2])
    bench.cache.cancel_image(begun_ahead(bench, keys))
    assert bench.cache.images.num_free == 1
    bench.check()
    bench.cache.finish_image(begun_ahead(bench, keys))
    bench.check()


def test_two_requests_of_one_step_make_one_image() -> None:
    bench = Bench()
    keys = keys_of([1, 2, 3, 4])
    image = begun_ahead(bench, keys)
    assert bench.cache.begin_image_ahead(keys, ImageRole.DECODE) is None
    bench.publish([1, 2, 3, 4])
    bench.cache.finish_image(image)
    assert bench.cache.begin_image_ahead(keys, ImageRole.DECODE) is None
    assert image.role is ImageRole.PROMPT


def test_a_page_that_collides_while_an_image_is_made_gets_no_image_of_another_text() -> None:
    bench = Bench()
    (key,) = keys_of([1, 2])
    other = dataclasses.replace(key, content=dataclasses.replace(key.content, token_ids=(8, 9)))
    image = begun_ahead(bench, [key])
    page = bench.pool.take()
    bench.cache.publish([other], page)
    bench.cache.finish_image(image)
    assert bench.cache.match([other], 3).num_tokens == 0
    assert bench.cache.images.num_free == bench.cache.images.num_slots
    bench.check(*page)
    assert bench.cache.begin_image_ahead([key], ImageRole.PROMPT) is None


def test_an_answer_does_not_displace_the_end_of_its_prompt_when_numbered_ahead() -> None:
    bench = Bench(num_images=1)
    keys = bench.publish([1, 2, 3, 4])
    bench.keep(keys[1], ImageRole.PROMPT)
    longer = keys_of([1, 2, 3, 4, 5, 6, 7, 8])
    assert bench.cache.begin_image_ahead(longer, ImageRole.DECODE) is None
    assert bench.match([1, 2, 3, 4, 5]).num_tokens == 4


def test_a_cache_without_pages_numbers_nothing_ahead() -> None:
    assert Bench(max_pages=0).cache.begin_image_ahead(keys_of([1, 2]), ImageRole.PROMPT) is None


def test_evictable_pages_are_those_that_room_can_be_made_of() -> None:
    bench = Bench(num_pages=6)
    keys = keys_of([1, 2, 3, 4])
    pages = bench.pool.take(2)
    bench.cache.publish(keys, pages)
    bench.publish([7, 7])
    assert bench.cache.num_evictable == 1
    bench.pool.give_back(pages[:1])
    assert bench.cache.num_evictable == 1  # the second page, in use, hangs on the first
    assert bench.cache.page_of(keys[1]) == pages[1]
    bench.pool.give_back(pages[1:])
    assert bench.cache.num_evictable == 3
    assert bench.cache.make_room(6)
    assert bench.cache.page_of(keys[1]) is None


def test_an_abandoned_lease_of_adopted_pages_leaves_them_to_their_table() -> None:
    bench = Bench()
    bench.keep(bench.publish([1, 2])[0])
    lease = bench.cache.acquire(bench.match([1, 2, 3]))
    table = PageTable(bench.pool, BLOCK)
    table.adopt(lease.match.page_ids)
    bench.cache.abandon(lease, adopted=True)
    bench.check(*table.page_ids)
    table.release()
    bench.check()
    assert bench.cache.make_room(16)


def test_a_match_of_at_most_so_many_tokens_walks_back_to_an_image_before_them() -> None:
    bench = Bench()
    keys = bench.publish([1, 2, 3, 4, 5, 6])
    bench.keep(keys[0])
    bench.keep(keys[2])
    for at_most, expected in ((0, 0), (1, 0), (2, 2), (5, 2), (6, 6), (99, 6)):
        found = bench.cache.match(keys, 7, at_most=at_most)
        assert (found.num_tokens, found.pre_gate_tokens) == (expected, 6)


def test_without_a_need_for_images_pages_alone_are_a_match() -> None:
    bench = Bench(num_images=0)
    bench.cache = PrefixCache(bench.pool, BLOCK, max_pages=16, num_images=0, needs_images=False)
    bench.publish([1, 2, 3, 4])
    lease = bench.cache.acquire(bench.match([1, 2, 3, 4, 5]))
    assert (lease.match.num_tokens, lease.image, lease.match.demanded_boundary) == (4, None, None)
    bench.check(*lease.match.page_ids)
    bench.cache.commit(lease)
    bench.pool.give_back(lease.match.page_ids)
    bench.check()


def test_hits_are_counted() -> None:
    bench = Bench()
    bench.keep(bench.publish([1, 2])[0])
    for prompt in ([1, 2, 3], [5, 5, 5]):
        bench.cache.commit(bench.cache.acquire(bench.match(prompt)))
    assert (bench.cache.counters.lookups, bench.cache.counters.hits) == (2, 1)


@dataclasses.dataclass
class Request:
    tokens: list[int]
    table: PageTable
    keys: tuple[PageKey, ...] = ()


class Serving(RuleBasedStateMachine):
    """Requests that begin, grow, end and restore, with the text behind every page and every image kept apart."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = PagePool(10)
        self.cache = PrefixCache(self.pool, BLOCK, max_pages=7, num_images=2)
        self.requests: list[Request] = []
        self.restores: list[PrefixLease] = []
        self.copies: list[Image] = []
        self.text_of_page: dict[int, tuple[int, ...]] = {}
        self.text_of_slot: dict[int, tuple[int, ...]] = {}
        self.text_of_key: dict[int, tuple[int, ...]] = {}

    def grow(self, request: Request, tokens: Sequence[int]) -> bool:
        if not self.cache.make_room(request.table.pages_needed(len(tokens))):
            return False
        assert request.table.append(len(tokens)) == [], "a full page is never copied"
        for token in tokens:
            page, _ = request.table.locate(len(request.tokens))
            assert self.pool.references(page) == 1, "a shared page is written"
            request.tokens.append(token)
            self.text_of_page[page] = tuple(request.tokens)
        request.keys = chain(request.tokens, BLOCK, ROOT, known=request.keys)
        for index, key in enumerate(request.keys):
            self.text_of_key[key.hash] = tuple(request.tokens[: BLOCK * (index + 1)])
        return True

    @precondition(lambda self: len(self.requests) < 3)
    @rule(prompt=st.lists(st.integers(0, 1), min_size=1, max_size=9), admitted=st.booleans())
    def begin(self, prompt: list[int], admitted: bool) -> None:
        keys = chain(prompt, BLOCK, ROOT)
        found = self.cache.match(keys, len(prompt))
        assert found.num_tokens <= found.counterfactual_tokens <= found.pre_gate_tokens < len(prompt)
        lease = self.cache.acquire(found)
        for index, page in enumerate(found.page_ids):
            assert self.text_of_page[page] == tuple(prompt[: BLOCK * (index + 1)]), "rows of another text"
        if lease.image is not None:
            assert self.text_of_slot[lease.image.slot] == tuple(prompt[: found.num_tokens]), "state of another text"
        request = Request(tokens=prompt[: found.num_tokens], table=PageTable(self.pool, BLOCK), keys=found.keys)
        # A request that finds no room gives up with its lease intact.
        if not admitted or not self.cache.make_room(-(-len(prompt) // BLOCK) - len(found.page_ids)):
            self.cache.abandon(lease)
            return
        request.table.adopt(found.page_ids)
        assert self.grow(request, prompt[found.num_tokens :])
        self.restores.append(lease)
        self.requests.append(request)

    @precondition(lambda self: self.restores)
    @rule(data=st.data())
    def end_restore(self, data: st.DataObject) -> None:
        lease = self.restores.pop(data.draw(st.integers(0, len(self.restores) - 1)))
        if lease.image is not None:
            text = self.text_of_slot[lease.image.slot]
            assert len(text) == lease.match.num_tokens, "an image changed while it was restored"
        self.cache.commit(lease)

    @precondition(lambda self: self.requests)
    @rule(data=st.data(), tokens=st.lists(st.integers(0, 1), min_size=1, max_size=3))
    def decode(self, data: st.DataObject, tokens: list[int]) -> None:
        self.grow(data.draw(st.sampled_from(self.requests)), tokens)

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def publish(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(self.requests))
        cached = self.cache.publish(request.keys, request.table.page_ids)
        assert self.cache.match(request.keys, BLOCK * cached + 1).pre_gate_tokens == BLOCK * cached

    @precondition(lambda self: self.requests)
    @rule(data=st.data(), role=st.sampled_from(list(ImageRole)))
    def keep_image(self, data: st.DataObject, role: ImageRole) -> None:
        request = data.draw(st.sampled_from(self.requests))
        assume(request.keys)
        key = data.draw(st.sampled_from(request.keys))
        image = self.cache.begin_image(key, role)
        if image is not None:
            busy = [lease.image.slot for lease in self.restores if lease.image is not None]
            assert image.slot not in [*busy, *(other.slot for other in self.copies)]
            self.text_of_slot[image.slot] = self.text_of_key[key.hash]
            self.copies.append(image)

    @precondition(lambda self: self.copies)
    @rule(data=st.data(), cancelled=st.booleans())
    def end_copy(self, data: st.DataObject, cancelled: bool) -> None:
        image = self.copies.pop(data.draw(st.integers(0, len(self.copies) - 1)))
        (self.cache.cancel_image if cancelled else self.cache.finish_image)(image)

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        self.requests.pop(data.draw(st.integers(0, len(self.requests) - 1))).table.release()

    @rule(count=st.integers(0, 10))
    def make_room(self, count: int) -> None:
        before = self.cache.num_pages
        assert self.cache.make_room(count) is (self.pool.num_free >= count)
        if self.pool.num_free < count:
            assert self.cache.num_pages == before

    @invariant()
    def everything_adds_up(self) -> None:
        self.cache.check_integrity()
        tables = [page for request in self.requests for page in request.table.page_ids]
        self.pool.check_integrity([*self.cache.held_page_ids, *tables])


TestServing = Serving.TestCase
TestServing.settings = settings(max_examples=120, stateful_step_count=30, deadline=None)
