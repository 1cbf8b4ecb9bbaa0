from concurrent.futures import Future

import numpy as np
from numpy.typing import NDArray

from flash41.checkpoint.loader import open_checkpoint
from flash41.checkpoint.presence import Presence
from flash41.checkpoint.read_ahead import Extent, ReadAhead
from flash41.checkpoint.residence import Residence
from flash41.checkpoint.row_ahead import ROWS_PER_REQUEST, SAMPLE, Rows, RowsAhead
from flash41.checkpoint.stored import Scope
from helpers.checkpoints import TINY


class Pages(Presence):
    """Only rows that begin at these addresses are missing; counts who asks."""

    def __init__(self, *missing: int) -> None:
        super().__init__()
        self.missing = missing
        self.num_asked = 0

    def missing_bytes(self, address: int, num_bytes: int) -> int:
        self.num_asked += 1
        return num_bytes if address in self.missing else 0


class Asked(ReadAhead):
    """Notes which rows are asked for; nothing ever comes."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[tuple[int, list[int]]] = []
        self.futures: list[Future[None]] = []

    def request_rows(self, extent: Extent, row_bytes: int, row_ids: NDArray[np.int64]) -> list[Future[None]]:  # noqa: ARG002
        self.rows.append((row_bytes, row_ids.tolist()))
        self.futures.append(Future())
        return [self.futures[-1]]


def table(pages: Presence, asked: ReadAhead) -> RowsAhead:
    extent = Extent(descriptor=0, begin=0, num_bytes=1 << 20)
    parts = [Rows(extent=extent, address=1000, row_bytes=256), Rows(extent=extent, address=9000, row_bytes=8)]
    return RowsAhead(parts, pages, asked)


def test_every_row_of_every_part_is_asked_for_once() -> None:
    asked = Asked()
    rows = table(Pages(1000 + 7 * 256), asked)
    rows.request(np.array([[7, 3], [3, 9]]))
    assert asked.rows == [(256, [3, 7, 9]), (8, [3, 7, 9])]
    assert rows.num_requested == 3


def test_nothing_is_asked_where_the_rows_looked_at_are_in_memory() -> None:
    pages, asked = Pages(), Asked()
    table(pages, asked).request(np.arange(10_000))
    assert asked.rows == []
    assert pages.num_asked <= SAMPLE
    table(pages, asked).request(np.empty(0, dtype=np.int64))
    assert asked.rows == []


def test_many_rows_are_divided_among_threads() -> None:
    asked = Asked()
    table(Pages(1000), asked).request(np.arange(2 * ROWS_PER_REQUEST + 1))
    assert [len(rows) for size, rows in asked.rows if size == 256] == [ROWS_PER_REQUEST, ROWS_PER_REQUEST, 1]


def test_a_new_request_takes_back_what_had_no_turn() -> None:
    asked = Asked()
    rows = table(Pages(1000), asked)
    rows.request(np.array([0]))
    rows.request(np.array([0, 5]))
    assert [future.cancelled() for future in asked.futures] == [True, True, False, False]


def test_a_table_in_memory_has_nobody_to_ask() -> None:
    layer_id = 1
    for residence, asks in ((Residence(whole=True), False), (Residence(dense=True), True)):
        checkpoint = open_checkpoint(TINY, [Scope.BACKBONE])
        checkpoint.hold(residence)
        assert (checkpoint.engram_ahead(layer_id) is not None) is asks
