"""The judge accepts equality, and rejects what each of its rules is there for."""

import dataclasses

import numpy as np
import pytest

from helpers.golden_judge import (
    Array,
    Case,
    distance,
    greedy_faults,
    load_case,
    mean_jaccard,
    t1_faults,
    t2_faults,
    t3_faults,
    trace_faults,
    widened,
)


@pytest.fixture(scope="module")
def case() -> Case:
    return load_case("odd_25")


@pytest.fixture(scope="module")
def golden(case: Case) -> Array:
    return case.arrays["logits"]


def all_faults(got: Array, golden: Array, case: Case) -> list[list[str]]:
    found = distance(got, golden)
    assert case.noise is not None
    return [t1_faults(found), t2_faults(found, case.noise, len(case.ids)), t3_faults(found)]


def scaled_noise(golden: Array, relative: float) -> Array:
    noise = np.random.default_rng(5).standard_normal(golden.shape)
    lengths = np.linalg.norm(golden, axis=1, keepdims=True) / np.linalg.norm(noise, axis=1, keepdims=True)
    return golden + relative * lengths * noise


def test_equal_logits_pass_every_rule(golden: Array, case: Case) -> None:
    assert all_faults(golden, golden, case) == [[], [], []]


@pytest.mark.parametrize(
    ("relative", "outside"),
    [(5e-5, (False, False, False)), (2e-3, (True, False, False)), (0.25, (True, True, True))],
)
def test_each_rule_rejects_noise_above_its_own_size(
    relative: float, outside: tuple[bool, ...], golden: Array, case: Case
) -> None:
    assert tuple(map(bool, all_faults(scaled_noise(golden, relative), golden, case))) == outside


def test_a_nan_is_outside_every_rule(golden: Array, case: Case) -> None:
    got = golden.copy()
    got[3, 7] = np.nan
    assert all("finite" in faults for faults in all_faults(got, golden, case))


def test_rows_in_another_order_are_outside_every_rule(golden: Array, case: Case) -> None:
    assert all(all_faults(golden[::-1], golden, case))


def test_one_clear_token_missed_is_outside_t2(golden: Array, case: Case) -> None:
    got = golden.copy()
    clearest = int(np.argmax(case.arrays["top1_margin"]))
    got[clearest, int(np.argsort(got[clearest])[-2])] = got[clearest].max() + 1e-3
    assert case.noise is not None
    noise = dataclasses.replace(case.noise, rel_median=1.0, rel_p90=1.0)
    assert t2_faults(distance(got, golden), noise, len(case.ids)) == ["margin of a missed top-1"]


@pytest.mark.parametrize(
    "point", ["trace/L2.index.selected", "trace/L6.index.candidates", "trace/L0.router.ids", "trace/L9.router.ids"]
)
def test_integers_of_other_rows_are_outside_the_trace_rules(point: str, case: Case) -> None:
    assert trace_faults(case.arrays, case) == []
    assert trace_faults({**case.arrays, point: case.arrays[point][::-1]}, case) == [point]


def test_a_first_layer_off_by_one_percent_is_outside_the_trace_rules(case: Case) -> None:
    point = "trace/L1.ffn.out"
    assert trace_faults({**case.arrays, point: case.arrays[point] * 1.01}, case) == [point]


def test_a_greedy_text_may_turn_only_where_two_tokens_are_close() -> None:
    logits = np.array([[0.0, 1.0], [0.0, 0.05], [0.0, 1.0]])
    assert greedy_faults([1, 0, 0], [1, 1, 1], logits, 3) == []
    assert greedy_faults([0, 1, 1], [1, 1, 1], logits, 3) == ["step 0: 0 at margin 1.000"]
    assert greedy_faults([0, 1, 1], [1, 1, 1], logits, 0) == []


def test_overlap_ignores_the_padding() -> None:
    assert mean_jaccard(np.array([[1, 2, -1], [-1, -1, -1]]), np.array([[2, 3, -1], [-1, -1, -1]])) == (1 / 3 + 1) / 2


def test_bf16_bits_widen_to_their_values() -> None:
    bits = np.array([0x3F80, 0xC000, 0x0000], dtype=np.uint16)
    assert widened(bits).tolist() == [1.0, -2.0, 0.0]
