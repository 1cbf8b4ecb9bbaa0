import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flash41.config.architecture import EngramConfig
from flash41.engram.hashing import (
    DEAD,
    INT64_MAX,
    EngramHash,
    engram_hashes,
    multipliers,
    row_ids,
    rows_for_span,
    windows,
)
from flash41.errors import ProtocolError
from oracles import engram as oracle

VECTORS: dict[str, Any] = json.loads((Path(__file__).parents[2] / "data" / "engram" / "engram.json").read_text())
PAD = 2


def make_config(
    *, layer_ids: tuple[int, ...], heads: int, vocab_size: int, classes: int, max_ngram: int = 4
) -> EngramConfig:
    return EngramConfig(
        layer_ids=layer_ids,
        table_rows=(0,) * len(layer_ids),
        max_ngram=max_ngram,
        num_heads=heads,
        head_dim=32,
        vocab_size=vocab_size,
        pad_token_id=PAD,
        compressed_vocab_size=classes,
    )


RELEASE = engram_hashes(make_config(layer_ids=(1, 14), heads=8, vocab_size=16_000_000, classes=99092))
TINY = {
    (classes, constants.layer_id): constants
    for classes, vocab_size, heads in ((100, 1000, 2), (5000, 6000, 8))
    for constants in engram_hashes(make_config(layer_ids=(1, 4), heads=heads, vocab_size=vocab_size, classes=classes))
}


def release(layer_id: int) -> EngramHash:
    return next(constants for constants in RELEASE if constants.layer_id == layer_id)


def ids(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


@pytest.mark.parametrize("vector", VECTORS["layers"], ids=lambda vector: f"layer {vector['layer']}")
def test_release_constants_are_those_of_the_specification(vector: dict[str, Any]) -> None:
    constants = release(vector["layer"])
    assert constants.multipliers == tuple(vector["multipliers"])
    assert [list(order) for order in constants.moduli] == [vector[f"moduli_order_{order}"] for order in (2, 3, 4)]
    assert constants.offsets == tuple(vector["offsets"])
    assert constants.num_rows == vector["rows"]
    assert constants.num_rows * VECTORS["constants"]["row_bytes_weight"] == vector["weight_bytes"]
    assert constants.num_rows * VECTORS["constants"]["row_bytes_scale"] == vector["scale_bytes"]


@pytest.mark.parametrize("vector", VECTORS["hash"], ids=lambda vector: f"{vector['window']} layer {vector['layer']}")
def test_release_windows_hash_to_the_rows_of_the_specification(vector: dict[str, Any]) -> None:
    rows = row_ids(release(vector["layer"]), ids(*vector["window"])[None])
    assert rows.tolist() == [vector["rows"]]
    assert rows[0, [0, 7, 8, 15, 16, 23]].tolist() == vector["columns_0_7_8_15_16_23"]
    assert rows.dtype == np.int64


@pytest.mark.parametrize("vector", VECTORS["tiny"], ids=lambda v: f"{v['compressed_vocab']} layer {v['layer']}")
def test_small_vocabularies_give_the_constants_and_rows_of_the_specification(vector: dict[str, Any]) -> None:
    constants = TINY[vector["compressed_vocab"], vector["layer"]]
    assert constants.multipliers == tuple(int(text) for text in vector["multipliers"])
    assert [list(order) for order in constants.moduli] == vector["moduli"]
    assert constants.num_rows == vector["rows"]
    assert row_ids(constants, ids(*vector["example"]["window"])[None]).tolist() == [vector["example"]["rows"]]


def test_multipliers_above_two_to_the_53_would_be_lost_in_doubles() -> None:
    constants = TINY[100, 1]
    assert max(constants.multipliers) > 2**53
    seen = windows(np.arange(100, dtype=np.int64), (), PAD, 4)
    product_in_doubles = [int(float(token) * float(constants.multipliers[0])) for token in seen[:, 0].tolist()]
    assert product_in_doubles != [token * constants.multipliers[0] for token in seen[:, 0].tolist()]
    rounded = tuple(int(float(factor)) for factor in constants.multipliers)
    exact = row_ids(constants, seen)
    assert exact.tolist() == [oracle.rows(row, constants.multipliers, constants.moduli) for row in seen.tolist()]
    wrong = [oracle.rows(row, rounded, constants.moduli) for row in seen.tolist()]
    assert (exact != np.array(wrong)).mean() > 0.9


def test_32_bit_products_would_give_other_rows() -> None:
    constants = release(1)
    seen = ids(12345, 678, 2, 2)
    narrow = [factor % 2**32 for factor in constants.multipliers]
    assert row_ids(constants, seen[None]).tolist()[0] != oracle.rows(seen.tolist(), narrow, constants.moduli)


def test_largest_possible_product_stays_below_two_to_the_63() -> None:
    bound, classes = VECTORS["constants"]["multiplier_bound"], VECTORS["constants"]["compressed_vocab"]
    assert INT64_MAX // classes // 2 == bound
    assert (classes - 1) * (2 * bound - 1) == int(VECTORS["constants"]["largest_product"]) <= INT64_MAX


@given(classes=st.integers(2, 2**40), layer_id=st.integers(0, 60), max_ngram=st.integers(2, 6))
@settings(deadline=None, max_examples=60)
def test_no_vocabulary_lets_a_product_wrap(classes: int, layer_id: int, max_ngram: int) -> None:
    drawn = multipliers(layer_id, max_ngram, classes)
    assert len(drawn) == max_ngram
    assert all(factor % 2 == 1 and 0 < factor * (classes - 1) <= INT64_MAX for factor in drawn)


def test_primes_are_dealt_once_in_order_of_layer_order_and_head() -> None:
    hashes = engram_hashes(make_config(layer_ids=(0, 3, 5), heads=3, vocab_size=50, classes=40, max_ngram=5))
    dealt = [prime for constants in hashes for order in constants.moduli for prime in order]
    assert dealt == oracle.primes_from(50, 3 * 4 * 3)
    assert [len(constants.offsets) for constants in hashes] == [12, 12, 12]
    assert [constants.max_ngram for constants in hashes] == [5, 5, 5]


@pytest.mark.parametrize("vector", VECTORS["history"], ids=lambda vector: str(vector["compressed"]))
def test_windows_are_those_of_the_specification(vector: dict[str, Any]) -> None:
    compressed = ids(*(DEAD if token is None else token for token in vector["compressed"]))
    assert windows(compressed, (), PAD, 4).tolist() == vector["windows"]


def test_cut_at_an_image_is_cumulative() -> None:
    behind = windows(ids(8, 9), (5, 6, DEAD), PAD, 4)
    assert behind.tolist() == [[8, PAD, PAD, PAD], [9, 8, PAD, PAD]]


def test_dead_history_differs_from_padding_in_history() -> None:
    assert windows(ids(8), (5, DEAD, 7), PAD, 4).tolist() == [[8, 7, PAD, PAD]]
    assert windows(ids(8), (5, PAD, 7), PAD, 4).tolist() == [[8, 7, PAD, 5]]


def test_only_the_last_ids_of_a_long_history_are_read() -> None:
    assert windows(ids(8), (9, 5, 6, 7), PAD, 4).tolist() == windows(ids(8), (5, 6, 7), PAD, 4).tolist()


def test_no_tokens_give_no_windows_and_no_rows() -> None:
    seen = windows(ids(), (5, 6), PAD, 4)
    assert seen.shape == (0, 4)
    assert row_ids(release(1), seen).shape == (0, 24)


@pytest.mark.parametrize("token", [DEAD, 99092, 2**62])
def test_a_window_outside_the_compressed_vocabulary_is_refused(token: int) -> None:
    with pytest.raises(ProtocolError, match=r"windows of Engram layer 14.*expected compressed ids in 0..99091"):
        row_ids(release(14), ids(5, token, PAD, PAD)[None])


sequences = st.lists(st.one_of(st.just(DEAD), st.integers(0, 99)), min_size=1, max_size=40)


@given(compressed=sequences, layer_id=st.sampled_from([1, 4]))
@settings(deadline=None, max_examples=150)
def test_rows_of_any_sequence_are_those_of_big_integers(compressed: list[int], layer_id: int) -> None:
    constants = TINY[100, layer_id]
    expected = [
        oracle.rows(oracle.window(compressed, position, PAD, 4), constants.multipliers, constants.moduli)
        for position in range(len(compressed))
    ]
    assert rows_for_span(constants, ids(*compressed), 0, len(compressed), PAD).tolist() == expected


@given(
    seen=st.lists(st.lists(st.integers(0, 99091), min_size=4, max_size=4), min_size=1, max_size=8),
    layer_id=st.sampled_from([1, 14]),
)
@settings(deadline=None, max_examples=150)
def test_rows_of_any_release_window_are_those_of_big_integers(seen: list[list[int]], layer_id: int) -> None:
    constants = release(layer_id)
    rows = row_ids(constants, np.array(seen, dtype=np.int64))
    assert rows.tolist() == [oracle.rows(window, constants.multipliers, constants.moduli) for window in seen]
    ends = (*constants.offsets[1:], constants.num_rows)
    assert (rows >= np.array(constants.offsets)).all()
    assert (rows < np.array(ends)).all()


@given(compressed=sequences)
@settings(deadline=None, max_examples=40)
def test_every_split_in_two_and_token_by_token_give_the_same_rows(compressed: list[int]) -> None:
    constants, line, length = TINY[5000, 4], ids(*compressed), len(compressed)
    whole = rows_for_span(constants, line, 0, length, PAD)
    for cut in range(length + 1):
        parts = [rows_for_span(constants, line, 0, cut, PAD), rows_for_span(constants, line, cut, length - cut, PAD)]
        assert (np.concatenate(parts) == whole).all()
    singles = [rows_for_span(constants, line, position, 1, PAD) for position in range(length)]
    assert (np.concatenate(singles) == whole).all()


def test_each_layer_hashes_a_window_differently() -> None:
    seen = windows(np.arange(50, dtype=np.int64), (), PAD, 4)
    for one, other in itertools.combinations(RELEASE, 2):
        buckets = [row_ids(constants, seen) - np.array(constants.offsets) for constants in (one, other)]
        assert (buckets[0] != buckets[1]).mean() > 0.99
