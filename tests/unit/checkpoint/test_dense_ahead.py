from collections.abc import Sequence
from concurrent.futures import Future

from flash41.checkpoint.dense_ahead import PART_BYTES, SAMPLE, DenseAhead, Stored
from flash41.checkpoint.loader import open_checkpoint
from flash41.checkpoint.presence import Presence
from flash41.checkpoint.read_ahead import Extent, ReadAhead
from flash41.checkpoint.residence import Residence, is_dense
from flash41.checkpoint.stored import Scope
from helpers.checkpoints import TINY


class Pages(Presence):
    """Everything from an address on is missing."""

    def __init__(self, first: int) -> None:
        super().__init__()
        self.first = first
        self.asked: list[int] = []

    def missing_bytes(self, address: int, num_bytes: int) -> int:
        self.asked.append(address)
        return num_bytes if address >= self.first else 0


class Asked(ReadAhead):
    """Notes what is asked for; nothing comes by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.extents: list[Extent] = []
        self.futures: list[Future[None]] = []

    def request(self, extents: Sequence[Extent]) -> list[Future[None]]:
        self.extents += extents
        self.futures = [Future() for _ in extents]
        return self.futures


def stored(begin: int, num_bytes: int, address: int) -> Stored:
    return Stored(extent=Extent(descriptor=5, begin=begin, num_bytes=num_bytes), address=address)


TENSORS = [stored(100, PART_BYTES, 1 << 32), stored(100 + PART_BYTES, 1000, 1 << 33), stored(0, 8, 1 << 34)]


def test_all_is_asked_for_in_parts_if_anything_is_missing() -> None:
    asked = Asked()
    dense = DenseAhead(TENSORS, Pages((1 << 32) + PART_BYTES // 2), asked)
    dense.request()
    assert sum(extent.num_bytes for extent in asked.extents) == PART_BYTES + 1008
    assert max(extent.num_bytes for extent in asked.extents) == PART_BYTES
    assert dense.num_requests == 1


def test_nothing_is_asked_for_where_nothing_is_missing() -> None:
    asked, pages = Asked(), Pages(1 << 40)
    dense = DenseAhead(TENSORS, pages, asked)
    dense.request()
    assert (asked.extents, dense.num_requests) == ([], 0)
    assert SAMPLE - 1 <= len(pages.asked) <= SAMPLE + len(TENSORS)
    inside = [
        any(one.address <= place < one.address + one.extent.num_bytes for one in TENSORS) for place in pages.asked
    ]
    assert all(inside)


def test_what_is_on_its_way_is_not_asked_for_again() -> None:
    asked = Asked()
    dense = DenseAhead(TENSORS, Pages(0), asked)
    for _ in range(3):
        dense.request()
    assert dense.num_requests == 1
    for future in asked.futures:
        future.set_result(None)
    dense.request()
    assert dense.num_requests == 2


def test_only_mapped_dense_weights_have_somebody_who_asks() -> None:
    for residence, asks in ((Residence(), True), (Residence(dense=True), False), (Residence(whole=True), False)):
        checkpoint = open_checkpoint(TINY, [Scope.BACKBONE])
        checkpoint.hold(residence)
        assert (checkpoint.dense_ahead("layers.1.") is not None) is asks
    assert checkpoint.dense_ahead("layers.99.") is None


def test_it_concerns_every_dense_tensor_below_a_prefix_and_no_other() -> None:
    checkpoint = open_checkpoint(TINY, [Scope.BACKBONE])
    checkpoint.hold(Residence())
    dense = checkpoint.dense_ahead("layers.1.")
    assert dense is not None
    wanted = [spec for name, spec in checkpoint.specs.items() if name.startswith("layers.1.") and is_dense(spec)]
    assert sum(part.num_bytes for part in dense._parts) == sum(spec.num_bytes for spec in wanted)
