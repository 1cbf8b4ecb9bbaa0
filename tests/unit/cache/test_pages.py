"""Reference counts of pages and tables of requests, each step checked against plain lists."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from flash41.cache.pages import PageCopy, PagePool, PageTable
from flash41.errors import CapacityError, ProtocolError


def test_pages_are_handed_out_in_ascending_order_whatever_came_before() -> None:
    pool = PagePool(6)
    assert pool.take(4) == [0, 1, 2, 3]
    pool.give_back([2, 0])
    assert pool.take(3) == [0, 2, 4]
    pool.check_integrity([0, 1, 2, 3, 4])


def test_a_page_is_free_when_its_last_holder_gives_it_back() -> None:
    pool = PagePool(2)
    (page,) = pool.take()
    pool.share([page])
    assert pool.references(page) == 2
    pool.give_back([page])
    assert pool.num_free == 1
    pool.give_back([page])
    assert pool.num_free == 2
    pool.check_integrity([])


def test_a_request_for_too_many_pages_takes_none() -> None:
    pool = PagePool(3)
    pool.take(1)
    message = r"^free pages: got 2, expected at least 3 \(of 3; a request must end or wait\)$"
    with pytest.raises(CapacityError, match=message):
        pool.take(3)
    assert pool.num_free == 2
    assert pool.take(0) == []
    pool.check_integrity([0])


def test_pages_nobody_holds_are_neither_shared_nor_given_back_nor_written() -> None:
    pool = PagePool(2)
    with pytest.raises(AssertionError, match="page 1 is shared, but nobody holds it"):
        pool.share([1])
    with pytest.raises(AssertionError, match="page 1 is given back, but nobody holds it"):
        pool.give_back([1])
    with pytest.raises(AssertionError, match="page 1 is written, but nobody holds it"):
        pool.separate(1)


def test_only_a_shared_page_is_copied_before_it_is_written() -> None:
    pool = PagePool(2)
    (page,) = pool.take()
    assert pool.separate(page) is None
    pool.share([page])
    assert pool.separate(page) == PageCopy(source=0, target=1)
    assert (pool.references(0), pool.references(1)) == (1, 1)


def test_a_copy_without_a_free_page_changes_nothing() -> None:
    pool = PagePool(1)
    pool.take()
    pool.share([0])
    with pytest.raises(CapacityError, match="free pages: got 0"):
        pool.separate(0)
    pool.check_integrity([0, 0])


def test_a_lost_reference_is_reported_with_both_counts() -> None:
    pool = PagePool(3)
    pool.take(2)
    pool.check_integrity([0, 1])
    with pytest.raises(ProtocolError, match=r"page references \(counted, held\): got \{0: \(1, 2\), 1: \(1, 0\)\}"):
        pool.check_integrity([0, 0])


def test_a_broken_sum_is_reported() -> None:
    pool = PagePool(3)
    pool.take(2)
    pool._free.pop()
    with pytest.raises(
        ProtocolError, match=r"page pool: got '0 free \+ 2 referenced', expected free \+ referenced == 3"
    ):
        pool.check_integrity()
    pool = PagePool(3)
    pool.take(2)
    pool._references[1] = 2
    with pytest.raises(ProtocolError, match="page references: got 3, expected 2 handed out"):
        pool.check_integrity()
    pool = PagePool(3)
    pool._references[1] = 1
    with pytest.raises(ProtocolError, match="expected pages without a holder"):
        pool.check_integrity()


def test_tokens_take_pages_as_they_fill_them() -> None:
    table = PageTable(PagePool(4), 4)
    for count, pages in ((0, 0), (1, 1), (3, 1), (1, 2), (7, 3)):
        assert table.pages_needed(count) == pages - len(table.page_ids)
        assert table.append(count) == []
        assert len(table.page_ids) == pages
    assert (table.num_tokens, table.num_full_pages) == (12, 3)
    assert [table.locate(position) for position in (0, 3, 4, 11)] == [(0, 0), (0, 3), (1, 0), (2, 3)]
    for position in (-1, 12):
        with pytest.raises(AssertionError, match="of 12"):
            table.locate(position)


def test_an_append_that_does_not_fit_changes_nothing() -> None:
    pool = PagePool(2)
    table = PageTable(pool, 4)
    table.append(3)
    other = table.fork()
    with pytest.raises(CapacityError, match="free pages: got 1, expected at least 2"):
        other.append(2)
    assert (other.num_tokens, other.page_ids) == (3, (0,))
    pool.check_integrity([0, 0])


def test_rejected_tokens_give_their_pages_back() -> None:
    pool = PagePool(4)
    table = PageTable(pool, 4)
    table.append(13)
    table.trim(5)
    assert (table.page_ids, table.num_tokens, pool.num_free) == ((0, 1), 5, 2)
    table.trim(4)
    assert table.page_ids == (0,)
    with pytest.raises(AssertionError, match="4 tokens cannot be trimmed to 5"):
        table.trim(5)
    table.release()
    assert pool.num_free == 4


def test_a_fork_shares_full_pages_and_copies_the_last_one_when_it_grows() -> None:
    pool = PagePool(4)
    table = PageTable(pool, 4)
    table.append(6)
    other = table.fork()
    assert pool.num_free == 2
    assert other.pages_needed(1) == 1
    assert other.append(1) == [PageCopy(source=1, target=2)]
    assert (other.page_ids, table.page_ids) == ((0, 2), (0, 1))
    assert table.append(1) == []
    pool.check_integrity([0, 1, 0, 2])


def test_a_fork_at_a_page_boundary_copies_nothing() -> None:
    pool = PagePool(3)
    table = PageTable(pool, 4)
    table.append(4)
    other = table.fork()
    assert other.append(1) == []
    assert other.page_ids == (0, 1)


def test_an_adopted_prefix_is_extended_and_never_written() -> None:
    pool = PagePool(4)
    held = pool.take(2)
    pool.share(held)
    table = PageTable(pool, 4)
    table.adopt(held)
    assert (table.num_tokens, table.append(1), table.page_ids) == (8, [], (0, 1, 2))
    with pytest.raises(AssertionError, match="adopts"):
        table.adopt(held)


class Tables(RuleBasedStateMachine):
    """A few requests of one pool, whose tokens are kept once more by page and place."""

    BLOCK = 3

    def __init__(self) -> None:
        super().__init__()
        self.pool = PagePool(9)
        self.tables: list[tuple[PageTable, list[int]]] = []
        self.memory: dict[tuple[int, int], int] = {}
        self.next_token = 0

    @precondition(lambda self: len(self.tables) < 4)
    @rule()
    def begin(self) -> None:
        self.tables.append((PageTable(self.pool, self.BLOCK), []))

    @precondition(lambda self: self.tables)
    @rule(data=st.data(), count=st.integers(0, 7))
    def append(self, data: st.DataObject, count: int) -> None:
        table, tokens = data.draw(st.sampled_from(self.tables))
        needed, before = table.pages_needed(count), (table.page_ids, table.num_tokens, self.pool.num_free)
        if needed > before[2]:
            with pytest.raises(CapacityError):
                table.append(count)
            assert (table.page_ids, table.num_tokens, self.pool.num_free) == before
            return
        for copy in table.append(count):
            for place in range(self.BLOCK):
                if (copy.source, place) in self.memory:
                    self.memory[copy.target, place] = self.memory[copy.source, place]
        assert self.pool.num_free == before[2] - needed
        for _ in range(count):
            page, place = table.locate(len(tokens))
            assert self.pool.references(page) == 1, "a shared page is written"
            self.memory[page, place] = self.next_token
            tokens.append(self.next_token)
            self.next_token += 1

    @precondition(lambda self: self.tables)
    @rule(data=st.data(), share=st.floats(0, 1))
    def trim(self, data: st.DataObject, share: float) -> None:
        table, tokens = data.draw(st.sampled_from(self.tables))
        kept = int(share * len(tokens))
        table.trim(kept)
        del tokens[kept:]

    @precondition(lambda self: 0 < len(self.tables) < 4)
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        table, tokens = data.draw(st.sampled_from(self.tables))
        self.tables.append((table.fork(), list(tokens)))

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.tables) - 1))
        self.tables.pop(index)[0].release()

    @invariant()
    def every_reference_is_a_table(self) -> None:
        self.pool.check_integrity([page for table, _ in self.tables for page in table.page_ids])

    @invariant()
    def every_table_reads_its_own_tokens(self) -> None:
        for table, tokens in self.tables:
            assert table.num_tokens == len(tokens)
            assert len(table.page_ids) == -(-len(tokens) // self.BLOCK)
            assert [self.memory[table.locate(position)] for position in range(len(tokens))] == tokens


TestTables = Tables.TestCase
TestTables.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)


def test_a_table_exchanges_a_full_page_for_one_with_the_same_tokens() -> None:
    pool = PagePool(5)
    (filed,) = pool.take()
    table = PageTable(pool, 2)
    table.append(5)
    assert table.page_ids == (1, 2, 3)
    table.exchange(1, filed)
    assert table.page_ids == (1, 0, 3)
    assert (pool.references(filed), pool.references(2), pool.num_free) == (2, 0, 2)
    pool.check_integrity([filed, *table.page_ids])
    with pytest.raises(AssertionError, match="page 2 of 2 full ones is exchanged"):
        table.exchange(2, filed)
    table.exchange(1, filed)  # with itself: nothing changes
    pool.check_integrity([filed, *table.page_ids])
