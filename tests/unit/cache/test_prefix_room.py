"""Which pages the prefix cache files, and which go first when room is made."""

from flash41.cache.images import ImageRole
from helpers.prefix_bench import Bench, keys_of


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


def test_evicting_a_page_drops_the_image_filed_under_it() -> None:
    bench = Bench(num_images=1)
    bench.keep(bench.publish([1, 2])[0])
    assert bench.cache.make_room(16)
    assert (bench.cache.counters.images_orphaned, bench.cache.counters.pages_evicted) == (1, 1)
    assert bench.cache.images.num_free == 1
    bench.check()


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
