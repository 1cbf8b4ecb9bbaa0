"""Images against the bytes of the rings they are copies of, in every pool and for rings of any depth."""

import pytest
import torch
from torch import Tensor

from flash41.cache.geometry import PoolGeometry
from flash41.cache.image_store import ImageStore
from flash41.cache.paged import PagedStore
from flash41.cache.placement import placement
from flash41.cache.store_shape import StoreShape
from flash41.config.run import PoolDtype
from flash41.errors import CapacityError, ProtocolError
from helpers.cache_geometry import tiny

NUM_SLOTS = 3


def store(geometry: PoolGeometry) -> PagedStore:
    shape = StoreShape(
        num_slots=NUM_SLOTS,
        max_positions=64,
        num_layers=geometry.num_layers,
        window=geometry.window,
        ring=geometry.window_ring,
        channels=geometry.channels,
        index_channels=geometry.index.channels,
        owner_ratios={owner.layer_id: owner.ratio for owner in geometry.owners},
        member_depth=geometry.compressor_ring,
    )
    return PagedStore(shape, placement(geometry, 4, NUM_SLOTS))


def fill(tested: PagedStore, slot: int, seed: int) -> Tensor:
    """Random bytes in all windows of a slot, and a copy of them."""
    windows = tested.pool.window_bytes()[slot]
    windows.copy_(torch.randint(0, 256, windows.shape, generator=torch.Generator().manual_seed(seed)))
    return windows.clone()


@pytest.fixture(params=[("bf16", 0), ("fp4", 0), ("bf16", 5), ("fp4", 5)], ids=str)
def tested(request: pytest.FixtureRequest) -> PagedStore:
    main, drafts = request.param
    return store(tiny(PoolDtype(main), PoolDtype.FP4, block_size=8, draft_tokens=drafts))


def test_windows_are_views_of_the_pool_at_their_addresses(tested: PagedStore) -> None:
    places, windows = tested.pool.placement, tested.pool.window_bytes()
    expected = fill(tested, 1, 3)
    for layer_id in range(places.geometry.num_layers):
        for position in (0, places.geometry.window_ring - 1):
            start = places.window_address(1, layer_id, position)
            row = tested.pool.memory[start : start + places.geometry.window_row_bytes]
            assert torch.equal(row, expected[layer_id, position])
    assert windows.data_ptr() - tested.pool.memory.data_ptr() == places.window_address(0, 0, 0)


@pytest.mark.parametrize("position", [8, 16, 24, 40])
def test_an_image_is_the_last_rows_in_order_of_position(tested: PagedStore, position: int) -> None:
    images, geometry = ImageStore(tested, 2), tested.pool.placement.geometry
    assert images.memory.nbytes == 2 * geometry.image_bytes
    before = fill(tested, 1, 4)
    tested.cursors[1] = position
    images.save(1, 1, position)
    window, ring = geometry.window, geometry.window_ring
    for place in range(window):
        held = position - window + place
        if held >= 0:
            assert torch.equal(images.memory[1, :, place], before[:, held % ring])
    assert not images.memory[0].any()


@pytest.mark.parametrize("position", [8, 24])
def test_another_slot_takes_an_image_and_its_cursor(tested: PagedStore, position: int) -> None:
    images, geometry = ImageStore(tested, 2), tested.pool.placement.geometry
    before = fill(tested, 0, 5)
    tested.cursors[0] = position
    images.save(0, 0, position)
    fill(tested, 0, 6)  # the slot goes on
    untouched = fill(tested, 1, 7)
    fill(tested, 2, 8)
    tested.cursors[2] = 3
    images.restore(0, 2, position, request_id=9)
    assert tested.cursors == [position, 0, position]
    rows = torch.arange(max(0, position - geometry.window), position) % geometry.window_ring
    windows = tested.pool.window_bytes()
    assert torch.equal(windows[2][:, rows], before[:, rows])
    assert torch.equal(windows[1], untouched)


def test_an_image_of_another_boundary_is_refused_with_request_and_both_positions(tested: PagedStore) -> None:
    images = ImageStore(tested, 2)
    with pytest.raises(ProtocolError, match=r"request 5: position of image 0: got None, expected 8"):
        images.restore(0, 1, 8, request_id=5)
    tested.cursors[1] = 16
    images.save(0, 1, 16)
    with pytest.raises(ProtocolError, match=r"request 5: position of image 0: got 16, expected 8"):
        images.restore(0, 1, 8, request_id=5)
    assert tested.cursors == [0, 16, 0]


def test_a_state_that_has_moved_on_is_not_saved(tested: PagedStore) -> None:
    images = ImageStore(tested, 1)
    tested.cursors[1] = 9
    with pytest.raises(ProtocolError, match=r"image 0 of slot 1: state position: got 9, expected 8"):
        images.save(0, 1, 8)


def test_images_that_do_not_fit_into_memory_are_refused_with_their_bytes(tested: PagedStore) -> None:
    with pytest.raises(CapacityError, match="cache memory in bytes"):
        ImageStore(tested, 1 << 50)
