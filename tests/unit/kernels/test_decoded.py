"""Keeping decoded weights: what is kept, for how long, and that it changes no number."""

import gc
import weakref
from collections.abc import Callable, Iterable

import pytest
import torch
from torch import Tensor

from flash41.kernels.reference import decoded as module
from flash41.kernels.reference.decoded import GROUP, DecodedWeights
from flash41.numerics.scaled import Quantized
from helpers.tensors import dense_weight, normal, routed_weight

NUM_BYTES = 64 * 96 * 8
"""A weight [64, 96] as FP64."""


def exact(weight: Quantized) -> Tensor:
    return weight.dequantize(torch.float64)


def joined(bands: Iterable[Tensor]) -> Tensor:
    return torch.cat(list(bands), -1)


def first_of(bands: Iterable[Tensor]) -> Tensor:
    return next(iter(bands))


@pytest.fixture(params=[None, 64 * 96, 40 * 96, 1], ids=["one band", "exactly one", "bands", "narrow"])
def bands(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param is not None:
        monkeypatch.setattr(module, "ELEMENTS_PER_BAND", request.param)


@pytest.mark.usefixtures("bands")
@pytest.mark.parametrize("make", [dense_weight, routed_weight])
def test_a_scaled_weight_is_decoded_exactly_in_both_forms(make: Callable[..., Quantized]) -> None:
    weight, kept = make(64, 96), DecodedWeights()
    for _ in range(2):
        assert torch.equal(joined(kept.matrix(weight)), exact(weight).t())
        blocks = joined(kept.blocks(weight))
        assert blocks.shape == (96 // GROUP, GROUP, 64)
        assert torch.equal(blocks.flatten(0, 1), exact(weight).t())


@pytest.mark.usefixtures("bands")
def test_stacked_weights_are_decoded_side_by_side() -> None:
    first, second = dense_weight(64, 96, seed=1), routed_weight(32, 96, seed=2)
    found = joined(DecodedWeights().blocks(first, second))
    assert torch.equal(found.flatten(0, 1), torch.cat((exact(first), exact(second))).t())


@pytest.mark.usefixtures("bands")
@pytest.mark.parametrize("shape", [(64, 96), (3, 64, 32)])
def test_a_plain_weight_is_widened_and_transposed(shape: tuple[int, ...]) -> None:
    weight = normal(*shape)
    assert torch.equal(joined(DecodedWeights().plain(weight)), weight.double().mT)


def test_a_weight_is_decoded_once() -> None:
    kept, weight = DecodedWeights(), dense_weight(64, 96)
    (first,), (second,) = kept.matrix(weight), kept.matrix(weight)
    assert first is second
    assert kept.held_bytes == NUM_BYTES


def test_equal_weights_are_different_weights() -> None:
    kept, first, second = DecodedWeights(), dense_weight(64, 96), dense_weight(64, 96)
    (one,), (other,) = kept.matrix(first), kept.matrix(second)
    assert one is not other
    assert kept.held_bytes == 2 * NUM_BYTES


def test_the_forms_of_a_weight_are_kept_apart() -> None:
    kept, weight = DecodedWeights(), dense_weight(64, 96)
    (matrix,), (blocks,) = kept.matrix(weight), kept.blocks(weight)
    assert matrix.shape != blocks.shape
    assert kept.held_bytes == 2 * NUM_BYTES


def test_the_least_recently_used_goes_first() -> None:
    kept, weights = DecodedWeights(3 * NUM_BYTES), [dense_weight(64, 96, seed=seed) for seed in range(4)]
    held = [first_of(kept.matrix(weight)) for weight in weights[:3]]
    assert first_of(kept.matrix(weights[0])) is held[0]
    first_of(kept.matrix(weights[3]))  # weight 1 goes
    assert kept.held_bytes == 3 * NUM_BYTES
    assert first_of(kept.matrix(weights[0])) is held[0]
    assert first_of(kept.matrix(weights[2])) is held[2]
    assert first_of(kept.matrix(weights[1])) is not held[1]


@pytest.mark.parametrize("budget_bytes", [0, NUM_BYTES - 1])
def test_what_exceeds_the_budget_alone_is_used_and_not_kept(budget_bytes: int) -> None:
    kept, weight = DecodedWeights(budget_bytes), dense_weight(64, 96)
    assert torch.equal(joined(kept.matrix(weight)), exact(weight).t())
    assert kept.held_bytes == 0
    assert joined(kept.matrix(weight)) is not joined(kept.matrix(weight))


def test_a_weight_larger_than_a_band_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ELEMENTS_PER_BAND", 32 * 96)
    kept, weight = DecodedWeights(), dense_weight(64, 96)
    assert len(list(kept.matrix(weight))) == len(list(kept.blocks(weight))) == 2
    assert len(list(kept.plain(normal(64, 96)))) == 2
    assert kept.held_bytes == 0


def test_a_kept_weight_lives_so_that_no_other_takes_its_identity() -> None:
    kept = DecodedWeights(NUM_BYTES)
    weight = normal(64, 96)
    alive = weakref.ref(weight)
    first_of(kept.plain(weight))
    del weight
    gc.collect()
    assert alive() is not None
    first_of(kept.plain(normal(64, 96, seed=1)))  # takes its place
    gc.collect()
    assert alive() is None


def test_a_spread_vector_repeats_each_entry_and_is_kept_by_its_counts() -> None:
    kept, values = DecodedWeights(), torch.tensor([1.0, 2.0, 3.0])
    assert kept.spread(values, (1, 2, 0)).tolist() == [1.0, 2.0, 2.0]
    assert kept.spread(values, (2, 1, 1)).tolist() == [1.0, 1.0, 2.0, 3.0]
    assert kept.spread(values, (1, 2, 0)) is kept.spread(values, (1, 2, 0))


@pytest.mark.parametrize(("elements", "expected"), [(64 * 96 * 5, 2), (64 * 96 * 4, 2), (64 * 96 * 4 - 1, 1), (32, 1)])
def test_as_many_stacks_of_weights_fit_as_a_band_has_room_for(
    monkeypatch: pytest.MonkeyPatch, elements: int, expected: int
) -> None:
    monkeypatch.setattr(module, "ELEMENTS_PER_BAND", elements)
    assert DecodedWeights().num_in_a_band(dense_weight(64, 96), dense_weight(64, 96, seed=1)) == expected
