"""The prefix cache: what may be resumed, how it is held until then, and what is counted and reported."""

import dataclasses

import pytest

from flash41.cache.images import ImageRole
from flash41.cache.page_keys import chain_root
from flash41.cache.pages import PageTable
from flash41.cache.prefix import PrefixCache
from flash41.errors import ConfigError, ProtocolError
from helpers.prefix_bench import BLOCK, Bench


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


# Leases.


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
